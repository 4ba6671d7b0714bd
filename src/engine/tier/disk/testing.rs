//! A disk in memory that fails when it is asked to.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::store::Storage;
use super::{Opened, Options};
use crate::prefix::Naming;
use crate::tier::Tier;
use step::random::Random;
use step::transfer::Piece;

/// Faults that the disk has.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub read: Option<io::ErrorKind>,
    pub write: Option<io::ErrorKind>,
    /// Reads do not end while it is so.
    pub blocked: bool,
}

/// Entries, by whether they are whole.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub whole: BTreeMap<u64, Vec<u8>>,
    pub parts: BTreeMap<u64, Vec<u8>>,
    pub faults: Faults,
}

/// The disk. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Fake(Arc<Mutex<Memory>>);

impl Fake {
    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().expect("no test has failed")
    }

    /// Options of a binary whose identity is of such bytes.
    pub fn options(&self, identity: u8, bytes: u64) -> Options {
        let storage = Arc::new(self.clone());
        let identity = [identity; 32];
        Options {
            name: "fake".to_owned(),
            open: Box::new(move || Ok(Opened { storage, identity })),
            bytes,
            bytes_a_day: u64::MAX,
        }
    }
}

impl<N: Naming> Tier<N> {
    /// Some of the pages and states that it has in host memory.
    pub fn taken(&self, random: &mut Random) -> Vec<Range<usize>> {
        let pages = self.index.all_pages().map(Piece::Page);
        let all = pages.chain(self.index.all_states().map(Piece::State));
        let some = all.filter(|_| random.chance(0.2));
        some.map(|piece| self.host.range(piece, self.pieces))
            .collect()
    }

    /// Forgets everything, as if the process had ended, but the copies of the device, which counts
    /// on.
    pub fn restart(&mut self, naming: N, options: Options) {
        assert!(!self.is_busy(), "no copies are under way");
        let bytes = self.host.pages() * self.pieces.page;
        let mut tier = Tier::new(bytes, self.pieces, naming).expect("the budget suffices");
        tier.started = self.started;
        tier.open_disk(options);
        let now = self
            .staging
            .as_ref()
            .map_or(Duration::ZERO, |of| of.disk.now());
        if let Some(staging) = &mut tier.staging {
            staging.disk.answered = now;
        }
        *self = tier;
    }
}

impl Fake {
    /// Changes a bit of one of its last entries, cuts it, exchanges it or loses it.
    pub fn spoil(&self, random: &mut Random) {
        let mut memory = self.memory();
        let last: Vec<u64> = memory.whole.keys().rev().copied().take(3).collect();
        if last.is_empty() {
            return;
        }
        let entry = random.pick(&last);
        let other = memory.whole[&random.pick(&last)].clone();
        let bytes = memory.whole.get_mut(&entry).expect("it is there");
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => *bytes = other,
            _ => drop(memory.whole.remove(&entry)),
        }
    }
}

impl Storage for Fake {
    fn list(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut memory = self.memory();
        memory.parts.clear();
        let whole = memory.whole.iter();
        Ok(whole.map(|(entry, of)| (*entry, of.len() as u64)).collect())
    }

    fn read(&self, entry: u64, at: u64, to: &mut [u8]) -> io::Result<()> {
        while self.memory().faults.blocked {
            thread::sleep(Duration::from_millis(1));
        }
        let memory = self.memory();
        if let Some(kind) = memory.faults.read {
            return Err(kind.into());
        }
        let whole = memory.whole.get(&entry).ok_or(io::ErrorKind::NotFound)?;
        let from = whole
            .get(at as usize..)
            .and_then(|rest| rest.get(..to.len()));
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, entry: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut memory = self.memory();
        if let Some(kind) = memory.faults.write {
            return Err(kind.into());
        }
        let part = memory.parts.entry(entry).or_default();
        let end = at as usize + bytes.len();
        part.resize(part.len().max(end), 0);
        part[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn publish(&self, entry: u64) -> io::Result<()> {
        let mut memory = self.memory();
        let part = memory.parts.remove(&entry).ok_or(io::ErrorKind::NotFound)?;
        memory.whole.insert(entry, part);
        Ok(())
    }

    fn touch(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, entry: u64) -> io::Result<()> {
        let mut memory = self.memory();
        memory.parts.remove(&entry);
        memory.whole.remove(&entry);
        Ok(())
    }
}
