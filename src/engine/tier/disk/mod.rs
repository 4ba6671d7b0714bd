//! Tier below host memory: prompt prefixes on a disk, which also outlast the server.
//!
//! The engine's thread has the index; other threads read, write and seal. A broken entry counts as
//! missing. A disk that is full, fails or is slower than computing is turned off, with one line for
//! the operator.

pub mod entry;
mod index;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::entry::{Bond, Header, Identity, Name, Secret, Tag};
use self::index::{DAY, Index, PieceLocation};
use self::store::{Folder, Storage};
use crate::prefix::{Evicted, Owner, SnapshotKind};
use host::calendar::seconds;
use host::log;
use host::pool::Pool;
use step::transfer::{PIECE_ALIGN, PieceBytes, Sum, sum};

pub use self::index::Found;

/// Threads that read, write and seal: a drive may be fast only with several requests at once.
pub const THREADS: usize = 4;
/// Number of bytes in the work of threads from which on threads get no further piece.
pub const IN_HANDS_MAX: usize = 64 << 20;
/// Time after which a disk that has finished none of its reads and writes counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Largest number of consecutive prompts that would have been computed sooner than read.
const SLOW_MAX: usize = 3;

/// Opened disk: storage of the entries, and the digest of everything that their bits depend on.
pub struct Opened {
    pub storage: Arc<dyn Storage>,
    pub identity: Identity,
}

/// Disk cache to open, and its size.
pub struct Options {
    /// Name of the disk in the log.
    pub name: String,
    /// Opens the disk, on a thread of its own; fails with the reason why it cannot be used.
    pub open: Box<dyn FnOnce() -> Result<Opened, String> + Send>,
    pub bytes: u64,
    /// Largest number of bytes that are written in a day.
    pub bytes_a_day: u64,
}

impl Options {
    /// Options for the folder at `path`; the thread that opens it computes `identity`.
    pub fn folder(
        path: PathBuf,
        identity: impl FnOnce() -> Result<Identity, String> + Send + 'static,
        (bytes, bytes_a_day): (u64, u64),
    ) -> Options {
        let name = path.display().to_string();
        let open = move || {
            let storage = Arc::new(Folder::open(&path)?);
            let identity = identity()?;
            Ok(Opened { storage, identity })
        };
        Options {
            name,
            open: Box::new(open),
            bytes,
            bytes_a_day,
        }
    }
}

/// Reason for which a piece could not be read or written.
enum Fault {
    /// The entry is broken or gone; the disk works.
    Entry,
    Disk(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => Fault::Entry,
            _ => Fault::Disk(error),
        }
    }
}

/// Result of a thread's work.
enum Done {
    Opened(Result<(Opened, Vec<Listed>, u64), String>),
    Read {
        ticket: u64,
        location: PieceLocation,
        index: usize,
        piece: Result<Read, Fault>,
    },
    Sealed {
        entry: u64,
        index: usize,
        bytes: usize,
        tag: Result<Tag, Fault>,
    },
    Published(Box<Draft>, io::Result<()>),
    Ended(io::Result<()>),
}

/// Bytes of a piece that was read, and their checksum.
pub type Read = (Vec<u8>, Sum);

/// Result of a piece's transfer.
pub enum Event {
    /// Piece of a read-ahead; none if it could not be read.
    Read {
        ticket: u64,
        index: usize,
        piece: Option<Read>,
    },
    /// The disk was turned off; no result of unfinished transfers will come.
    Off,
}

/// Number and header of an entry that was found in the folder.
type Listed = (u64, Header);

/// An entry that is being written.
pub struct Draft {
    entry: u64,
    names: Vec<Name>,
    header: Header,
    bond: Bond,
    secret: Secret,
    sealed: usize,
}

enum Access {
    Opening,
    On(Opened),
    /// Broken, slow or silent: not used until the server starts again.
    Off,
}

/// Bytes and entries that were transferred since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub written_bytes: u64,
    pub read_bytes: u64,
    /// Number of entries that were torn or changed, or another identity's.
    pub broken: usize,
}

/// The disk cache, as the engine's thread sees it.
pub struct Disk {
    name: String,
    access: Access,
    pool: Pool<Done>,
    index: Index,
    pieces: PieceBytes,
    bytes_a_day: u64,
    next_entry: u64,
    draft: Option<Draft>,
    /// Bytes of the pieces that threads are reading, writing or sealing.
    in_hands: usize,
    now: Duration,
    /// Time at which a thread's work last ended, or started while all threads were idle.
    answered: Duration,
    slow: usize,
    traffic: Traffic,
}

impl Disk {
    /// Disk that is being opened on another thread; the cache has no entries until it is open.
    pub fn new(options: Options, pieces: PieceBytes) -> Disk {
        let mut disk = Disk {
            name: options.name,
            access: Access::Opening,
            pool: Pool::new("cache", THREADS),
            index: Index::new(options.bytes, pieces),
            pieces,
            bytes_a_day: options.bytes_a_day,
            next_entry: 0,
            draft: None,
            in_hands: 0,
            now: Duration::ZERO,
            answered: Duration::ZERO,
            slow: 0,
            traffic: Traffic::default(),
        };
        let open = options.open;
        disk.run(move || Done::Opened(open().and_then(|opened| scan(opened, pieces))));
        disk
    }

    /// Sets the current time, counted from any fixed start; it never goes back.
    pub fn set_time(&mut self, time: Duration) {
        self.now = self.now.max(time);
        self.index.set_time(time);
    }

    pub fn is_on(&self) -> bool {
        matches!(self.access, Access::On(_))
    }

    pub fn is_off(&self) -> bool {
        matches!(self.access, Access::Off)
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    /// Whether threads have work.
    pub fn is_busy(&self) -> bool {
        match self.access {
            Access::Opening => self.now < self.answered + SILENCE_MAX,
            Access::On(_) => self.pool.under_way() > 0,
            Access::Off => false,
        }
    }

    pub fn bytes_used(&self) -> u64 {
        self.index.bytes()
    }

    pub fn written_in_a_day(&self) -> u64 {
        self.index.written()
    }

    pub fn evicted(&self) -> Evicted {
        self.index.evicted()
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Whether threads may get more work.
    pub fn has_hands(&self) -> bool {
        self.in_hands < IN_HANDS_MAX
    }

    fn run(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        if self.pool.under_way() == 0 {
            self.answered = self.now;
        }
        self.pool.run(job);
    }

    /// Has a thread run `work` on the storage; only a failure of the work matters.
    fn spawn(&mut self, work: impl FnOnce(&dyn Storage) -> io::Result<()> + Send + 'static) {
        if let Access::On(opened) = &self.access {
            let storage = opened.storage.clone();
            self.run(move || Done::Ended(work(&*storage)));
        }
    }

    /// Longest prefix of these blocks that entries have, if longer than `more_than` blocks.
    pub fn find(&mut self, names: &[Name], more_than: usize) -> Option<Found> {
        let found = self.index.find(names);
        (self.is_on() && found.pages.len() > more_than).then_some(found)
    }

    /// Notes that a prompt goes on from a found prefix.
    pub fn note_use(&mut self, found: &Found) {
        for entry in self.index.note_use(found) {
            self.spawn(move |storage| match storage.touch(entry) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            });
        }
    }

    /// Has a thread read a piece; an [`Event`] of the ticket brings it.
    pub fn read(&mut self, ticket: u64, index: usize, location: PieceLocation, secret: &Secret) {
        let Access::On(opened) = &self.access else {
            return;
        };
        let (storage, secret) = (opened.storage.clone(), secret.clone());
        self.in_hands += location.bytes;
        self.run(move || Done::Read {
            ticket,
            location,
            index,
            piece: read(&*storage, location, &secret),
        });
    }

    /// Starts an entry with the blocks of a prefix that no entry has; returns the number of earlier
    /// blocks. None if entries have all blocks, or nothing may be written.
    pub fn begin(
        &mut self,
        names: Vec<Name>,
        (secret, owner, state): (Secret, Owner, Option<SnapshotKind>),
    ) -> Option<usize> {
        let Access::On(opened) = &self.access else {
            return None;
        };
        if self.draft.is_some() || self.index.has(&names) {
            return None;
        }
        let known = self.index.known(&names);
        let header = Header {
            salt: host::random(),
            owner,
            created: seconds(),
            names: names[known..].to_vec(),
            end: *names.last()?,
            state,
            tags: vec![Tag::default(); names.len() - known + usize::from(state.is_some())],
        };
        let bond = header.bond(&opened.identity);
        let bytes = header.entry_bytes(self.pieces);
        if header.names.len() > entry::PAGES_MAX || self.index.written() + bytes > self.bytes_a_day
        {
            return None;
        }
        for entry in self.index.make_room(bytes)? {
            self.spawn(move |storage| storage.remove(entry));
        }
        self.next_entry += 1;
        self.draft = Some(Draft {
            entry: self.next_entry,
            names,
            header,
            bond,
            secret,
            sealed: 0,
        });
        Some(known)
    }

    /// Whether an entry is being written.
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// Writes a piece of the entry that is being written, if its bytes have this checksum.
    pub fn write(&mut self, index: usize, (mut piece, wanted): Read) {
        let (Access::On(opened), Some(draft)) = (&self.access, &self.draft) else {
            return;
        };
        let (entry, secret, bytes) = (draft.entry, draft.secret.clone(), piece.len());
        let bond = draft.bond;
        let at = draft.header.at(index, self.pieces);
        let storage = opened.storage.clone();
        self.in_hands += bytes;
        self.run(move || {
            let is_whole = sum(&piece) == wanted;
            let sealed = is_whole.then(|| bond.seal(&secret, index, &mut piece));
            let written = sealed.ok_or(Fault::Entry).and_then(|tag| {
                let written = storage.write(entry, at, &piece);
                written.map(|()| tag).map_err(Fault::Disk)
            });
            Done::Sealed {
                entry,
                index,
                bytes,
                tag: written,
            }
        });
    }

    /// Takes the next result of a thread's work.
    pub fn take(&mut self) -> Option<Event> {
        while let Some(done) = self.pool.take() {
            self.answered = self.now;
            let event = self.settle(done);
            if event.is_some() {
                return event;
            }
        }
        let is_silent = self.now > self.answered + SILENCE_MAX;
        (self.is_on() && self.is_busy() && is_silent)
            .then(|| self.turn_off("it does not answer"))
            .flatten()
    }

    fn settle(&mut self, done: Done) -> Option<Event> {
        match done {
            Done::Opened(Ok((opened, listed, last))) => self.take_listed(opened, listed, last),
            Done::Opened(Err(why)) => return self.turn_off(why),
            Done::Read {
                ticket,
                location,
                index,
                piece,
            } => {
                self.in_hands -= location.bytes;
                let piece = match piece {
                    Ok(piece) => Some(piece),
                    Err(Fault::Disk(error)) => return self.turn_off(error),
                    Err(Fault::Entry) => {
                        self.drop_entry(location.entry);
                        None
                    }
                };
                self.traffic.read_bytes +=
                    piece.as_ref().map_or(0, |(piece, _)| piece.len() as u64);
                return Some(Event::Read {
                    ticket,
                    index,
                    piece,
                });
            }
            Done::Sealed {
                entry,
                index,
                bytes,
                tag,
            } => {
                self.in_hands -= bytes;
                match tag {
                    Ok(tag) => self.take_sealed(entry, index, tag),
                    Err(Fault::Entry) => self.drop_draft(entry),
                    Err(Fault::Disk(error)) => return self.turn_off(error),
                }
            }
            Done::Published(draft, Ok(())) => self.take_published(*draft),
            Done::Published(_, Err(error)) | Done::Ended(Err(error)) => {
                return self.turn_off(error);
            }
            Done::Ended(Ok(())) => {}
        }
        None
    }

    fn take_listed(&mut self, opened: Opened, listed: Vec<Listed>, last: u64) {
        let identity = opened.identity;
        self.next_entry = last;
        self.access = Access::On(opened);
        let now = seconds();
        for (entry, header) in listed {
            if now.saturating_sub(header.created) < DAY.as_secs() {
                self.index.note_written(header.entry_bytes(self.pieces));
            }
            let bond = header.bond(&identity);
            self.index.add(entry, header, bond);
        }
        let bytes = self.index.bytes();
        let found = format_args!("{bytes} bytes of prompts are there");
        log::line(format_args!("--cache-dir {}: {found}", self.name));
        for entry in self.index.make_room(0).unwrap_or_default() {
            self.spawn(move |storage| storage.remove(entry));
        }
    }

    fn take_sealed(&mut self, entry: u64, index: usize, tag: Tag) {
        let Some(mut draft) = self.draft.take_if(|draft| draft.entry == entry) else {
            return;
        };
        draft.header.tags[index] = tag;
        draft.sealed += 1;
        match (&self.access, draft.sealed == draft.header.pieces()) {
            (Access::On(opened), true) => {
                let header = draft.header.encode(&opened.identity);
                let storage = opened.storage.clone();
                self.run(move || {
                    let written = storage.write(entry, 0, &header);
                    let published = written.and_then(|()| storage.publish(entry));
                    Done::Published(Box::new(draft), published)
                });
            }
            _ => self.draft = Some(draft),
        }
    }

    fn take_published(&mut self, draft: Draft) {
        if !self.is_on() {
            return;
        }
        let bytes = draft.header.entry_bytes(self.pieces);
        self.index.add(draft.entry, draft.header, draft.bond);
        self.index.note_written(bytes);
        self.traffic.written_bytes += bytes;
        // Earlier entries of the prefix count as used, so that they are not evicted first.
        let found = self.index.find(&draft.names);
        self.index.note_use(&found);
    }

    /// Drops an entry whose bytes changed in host memory before they were written.
    fn drop_draft(&mut self, entry: u64) {
        self.draft.take_if(|draft| draft.entry == entry);
        self.spawn(move |storage| storage.remove(entry));
    }

    fn drop_entry(&mut self, entry: u64) {
        self.traffic.broken += 1;
        self.index.remove(entry);
        self.spawn(move |storage| storage.remove(entry));
    }

    /// Notes whether a prompt was read before it would have been computed; turns off a slow disk.
    pub fn note_pace(&mut self, in_time: bool) -> Option<Event> {
        self.slow = if in_time { 0 } else { self.slow + 1 };
        let off = (self.slow >= SLOW_MAX).then(|| self.turn_off("it is slower than computing"));
        off.flatten()
    }

    fn turn_off(&mut self, why: impl fmt::Display) -> Option<Event> {
        if let Access::Off = mem::replace(&mut self.access, Access::Off) {
            return None;
        }
        log::line(format_args!(
            "--cache-dir {}: {why}; prompts are not kept there until the next start",
            self.name
        ));
        self.draft = None;
        self.index = Index::new(0, self.pieces);
        Some(Event::Off)
    }
}

/// Reads a piece and opens its seal.
fn read(storage: &dyn Storage, at: PieceLocation, secret: &Secret) -> Result<Read, Fault> {
    let mut piece = vec![0; at.bytes];
    storage.read(at.entry, at.at, &mut piece)?;
    let is_whole = at.bond.open(secret, at.index, &mut piece, &at.tag);
    let sum = sum(&piece);
    is_whole.then_some((piece, sum)).ok_or(Fault::Entry)
}

/// Lists a storage's entries of this identity and the largest entry number; removes other entries.
fn scan(opened: Opened, pieces: PieceBytes) -> Result<(Opened, Vec<Listed>, u64), String> {
    let storage = &*opened.storage;
    let mut own = vec![];
    let listed = storage.list().map_err(|error| error.to_string())?;
    let last = listed.iter().map(|(entry, _)| *entry).max();
    for (entry, bytes) in listed {
        let header = header(storage, entry, &opened.identity).map_err(|error| error.to_string())?;
        let header = header.filter(|header| header.entry_bytes(pieces) == bytes);
        match header {
            Some(header) => own.push((entry, header)),
            None => storage.remove(entry).map_err(|error| error.to_string())?,
        }
    }
    Ok((opened, own, last.unwrap_or(0)))
}

/// Reads the header of an entry; none if the entry has no header of that identity.
fn header(storage: &dyn Storage, entry: u64, identity: &Identity) -> io::Result<Option<Header>> {
    let read = |bytes: &mut [u8]| match storage.read(entry, 0, bytes).map_err(Fault::from) {
        Ok(()) => Ok(true),
        Err(Fault::Entry) => Ok(false),
        Err(Fault::Disk(error)) => Err(error),
    };
    let mut first = [0; PIECE_ALIGN];
    let is_there = read(&mut first)?;
    let Some(bytes) = Header::measure(&first, identity).filter(|_| is_there) else {
        return Ok(None);
    };
    let mut all = vec![0; bytes];
    Ok(read(&mut all)?.then(|| Header::decode(&all)).flatten())
}
