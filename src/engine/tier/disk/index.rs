//! Index of the disk's entries: their blocks, and their order of eviction.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::entry::{Bond, Header, Name, Tag};
use crate::prefix::{Evicted, Owner, SnapshotKind};
use step::transfer::PieceBytes;

/// Time over which written bytes are summed up.
pub const DAY: Duration = Duration::from_hours(24);

/// Location of a piece in an entry.
#[derive(Clone, Copy, Debug)]
pub struct PieceLocation {
    pub entry: u64,
    pub index: usize,
    pub at: u64,
    pub bytes: usize,
    pub bond: Bond,
    pub tag: Tag,
}

/// Pages and state of a prompt prefix that one or more entries have together.
#[derive(Debug, Default)]
pub struct Found {
    pub pages: Vec<PieceLocation>,
    pub state: Option<(SnapshotKind, PieceLocation)>,
}

#[derive(Debug)]
struct Entry {
    header: Header,
    bond: Bond,
    /// Time of the entry's last use, and the order among uses of the same time.
    used: (Duration, u64),
}

/// Entries, by number and by the names of their blocks.
#[derive(Debug)]
pub struct Index {
    pieces: PieceBytes,
    bytes_max: u64,
    entries: BTreeMap<u64, Entry>,
    blocks: HashMap<Name, (u64, usize)>,
    states: HashMap<Name, u64>,
    bytes: u64,
    uses: u64,
    now: Duration,
    evicted: Evicted,
    /// Numbers of written bytes with their times.
    written: VecDeque<(Duration, u64)>,
}

impl Index {
    pub fn new(bytes_max: u64, pieces: PieceBytes) -> Index {
        Index {
            pieces,
            bytes_max,
            entries: BTreeMap::new(),
            blocks: HashMap::new(),
            states: HashMap::new(),
            bytes: 0,
            uses: 0,
            now: Duration::ZERO,
            evicted: Evicted::default(),
            written: VecDeque::new(),
        }
    }

    /// Sets the current time, counted from any fixed start; it never goes back.
    pub fn set_time(&mut self, time: Duration) {
        self.now = self.now.max(time);
        let now = self.now;
        while self
            .written
            .pop_front_if(|(at, _)| now > *at + DAY)
            .is_some()
        {}
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn evicted(&self) -> Evicted {
        self.evicted
    }

    /// Number of bytes that were written in the last day.
    pub fn written(&self) -> u64 {
        self.written.iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn note_written(&mut self, bytes: u64) {
        self.written.push_back((self.now, bytes));
    }

    /// Number of leading blocks that entries have.
    pub fn known(&self, names: &[Name]) -> usize {
        let known = names.iter();
        let there = known.take_while(|name| self.blocks.contains_key(*name));
        there.count()
    }

    /// Whether entries have all blocks and a prompt can go on from the last one.
    pub fn has(&self, names: &[Name]) -> bool {
        let is_end = |name| self.pieces.state == 0 || self.states.contains_key(name);
        self.known(names) == names.len() && names.last().is_some_and(is_end)
    }

    /// Longest prefix of these blocks that entries have.
    pub fn find(&self, names: &[Name]) -> Found {
        let known = &names[..self.known(names)];
        let depth = match self.pieces.state {
            0 => known.len(),
            _ => {
                let mut known = known.iter();
                let last = known.rposition(|name| self.states.contains_key(name));
                last.map_or(0, |last| last + 1)
            }
        };
        let known = &known[..depth];
        let page = |name| {
            let (entry, index) = self.blocks[name];
            self.location(entry, index, self.pieces.page)
        };
        let state = known.last().and_then(|name| self.states.get(name));
        let state = state.and_then(|entry| {
            let header = &self.entries[entry].header;
            let location = self.location(*entry, header.names.len(), self.pieces.state);
            Some((header.state?, location))
        });
        let pages = known.iter().map(page).collect();
        Found { pages, state }
    }

    fn location(&self, entry: u64, index: usize, bytes: usize) -> PieceLocation {
        let Entry { header, bond, .. } = &self.entries[&entry];
        PieceLocation {
            entry,
            index,
            at: header.at(index, self.pieces),
            bytes,
            bond: *bond,
            tag: header.tags[index],
        }
    }

    /// Notes that a prompt goes on from a found prefix; returns the entries that have it.
    pub fn note_use(&mut self, found: &Found) -> Vec<u64> {
        let states = found.state.iter().map(|(_, state)| state.entry);
        let entries = found.pages.iter().map(|page| page.entry).chain(states);
        let mut entries: Vec<u64> = entries.collect();
        entries.dedup();
        self.uses += 1;
        let used = (self.now, self.uses);
        for entry in &entries {
            self.entries.get_mut(entry).expect("it was found").used = used;
        }
        entries
    }

    /// Adds a complete entry.
    pub fn add(&mut self, entry: u64, header: Header, bond: Bond) {
        for (index, name) in header.names.iter().enumerate() {
            self.blocks.insert(*name, (entry, index));
        }
        if header.state.is_some() {
            self.states.insert(header.end, entry);
        }
        self.bytes += header.entry_bytes(self.pieces);
        self.uses += 1;
        let used = (self.now, self.uses);
        self.entries.insert(entry, Entry { header, bond, used });
    }

    /// Removes an entry.
    pub fn remove(&mut self, entry: u64) {
        let Some(Entry { header, .. }) = self.entries.remove(&entry) else {
            return;
        };
        self.bytes -= header.entry_bytes(self.pieces);
        for name in &header.names {
            if self.blocks.get(name).is_some_and(|(of, _)| *of == entry) {
                self.blocks.remove(name);
            }
        }
        if self.states.get(&header.end) == Some(&entry) {
            self.states.remove(&header.end);
        }
    }

    /// Forgets entries until so many more bytes fit: the least recently used of the owner with the
    /// most bytes; of entries used at the same time the newest, which goes on from older ones. None
    /// if so many bytes never fit.
    pub fn make_room(&mut self, bytes: u64) -> Option<Vec<u64>> {
        let mut removed = vec![];
        if bytes > self.bytes_max {
            return None;
        }
        while self.bytes + bytes > self.bytes_max {
            let last = self.last().expect("entries have all bytes");
            let entry = &self.entries[&last];
            self.evicted.count += 1;
            self.evicted.pages += entry.header.names.len();
            self.evicted.age += self.now - entry.used.0;
            self.remove(last);
            removed.push(last);
        }
        Some(removed)
    }

    /// Entry that is evicted next.
    fn last(&self) -> Option<u64> {
        let mut owners: HashMap<Owner, u64> = HashMap::new();
        for entry in self.entries.values() {
            let bytes = entry.header.entry_bytes(self.pieces);
            *owners.entry(entry.header.owner).or_default() += bytes;
        }
        let owners = owners.into_iter();
        let (most, _) = owners.max_by_key(|(owner, bytes)| (*bytes, *owner))?;
        let entries = self.entries.iter();
        let own = entries.filter(|(_, of)| of.header.owner == most);
        let last = own.min_by_key(|(id, entry)| (entry.used, std::cmp::Reverse(**id)));
        last.map(|(id, _)| *id)
    }
}
