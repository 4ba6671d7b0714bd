//! Staging between host memory and the disk: write-behind of prefixes that were saved to host
//! memory, and read-ahead of prefixes of waiting prompts. Threads of the device and of the disk
//! copy; the engine's thread only schedules them.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::disk::entry::Secret;
use super::disk::{self, Disk, Event, Found, Options};
use super::{Beginning, Incoming, Tier};
use crate::prefix::{Naming, NodeId, Owner, Reuse};
use step::PAGE;
use step::executor::{Executor, TokenId};
use step::transfer::Piece;

/// Bytes of running copies between host memory and buffers of the disk's threads, in each
/// direction, from which on no further piece is copied.
const COPIED_MAX: usize = 32 << 20;
/// Divisor of host memory: prefixes that wait to be written have that part at most, since their
/// memory cannot be evicted meanwhile.
const QUEUED_PART: usize = 2;
/// Least limit of the time to read a prefix, however fast the device would compute the prefix.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// Limit of the time to read a prefix while the speed of prefill is not known.
const UNKNOWN: Duration = Duration::from_secs(10);

/// Prompt whose prefix is to be read from the disk.
#[derive(Debug)]
pub struct ReadAhead<'a> {
    /// Domain and owner of the prompt.
    pub whose: (u128, Owner),
    pub prompt: &'a [TokenId],
    /// Number of leading pages that the device has cached.
    pub here: usize,
    /// Time that the device takes to compute a page, if measured.
    pub takes: Option<Duration>,
}

struct Read {
    ticket: u64,
    beginning: Option<Beginning>,
    secret: Secret,
    found: Found,
    incoming: Option<Incoming>,
    /// Pages and state in host memory that the prefix is read to.
    pieces: Vec<Piece>,
    started: usize,
    /// Number of pieces that the disk has read.
    arrived: usize,
    /// Copies of read pieces to host memory that are running.
    filling: VecDeque<Receiver<()>>,
    patience: Duration,
    begun: Duration,
}

impl Read {
    /// Host memory of the read, once no thread uses it any more, so that it may be freed.
    fn end(self) -> Option<Incoming> {
        for copy in self.filling {
            let _ = copy.recv(); // one that was started ends soon
        }
        self.incoming
    }
}

#[derive(Debug)]
struct Write {
    node: NodeId,
    /// Pieces in host memory that are to be written to the disk.
    pieces: Vec<Piece>,
    started: usize,
    /// Bytes of pieces that are being copied from host memory, the oldest first.
    coming: VecDeque<Receiver<Vec<u8>>>,
}

impl Write {
    /// Last block of the written prefix, once no thread reads its memory any more.
    fn end(self) -> NodeId {
        for copy in self.coming {
            let _ = copy.recv(); // one that was started ends soon
        }
        self.node
    }
}

/// Queues of reads and writes of a disk.
pub struct Staging {
    pub disk: Disk,
    queued: VecDeque<(Beginning, NodeId)>,
    write: Option<Write>,
    /// Reads in order; the first one is running.
    reads: VecDeque<Read>,
    /// Last blocks of prefixes read for waiting prompts, by ticket; pinned until the prompt starts.
    reserved: HashMap<u64, NodeId>,
    tickets: u64,
    pages_read: usize,
}

impl Staging {
    pub fn is_busy(&self) -> bool {
        let writes = self.write.is_some() || !self.queued.is_empty();
        !self.reads.is_empty() || self.disk.is_busy() || self.disk.is_on() && writes
    }

    /// Prefix that is being read to host memory.
    pub(super) fn incoming(&self) -> Option<&Incoming> {
        self.reads.front()?.incoming.as_ref()
    }

    /// Number of pages that were read from the disk.
    pub fn pages_read(&self) -> usize {
        self.pages_read
    }
}

impl<N: Naming> Tier<N> {
    /// Opens a disk below the tier.
    pub fn open_disk(&mut self, options: Options) {
        self.staging = Some(Staging {
            disk: Disk::new(options, self.pieces),
            queued: VecDeque::new(),
            write: None,
            reads: VecDeque::new(),
            reserved: HashMap::new(),
            tickets: 0,
            pages_read: 0,
        });
    }

    pub fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// Reads the prefix of a prompt if the disk has more of it than host memory and device; returns
    /// the read's ticket.
    pub fn read_ahead(&mut self, ahead: &ReadAhead<'_>) -> Option<u64> {
        let on_host = self.look_up(ahead.whose.0, ahead.prompt).pages.len();
        let staging = self.staging.as_mut().filter(|of| of.disk.is_on())?;
        let secret = Secret::of(ahead.whose.0);
        let whole = ahead.prompt.len().saturating_sub(1) / PAGE * PAGE;
        let names = secret.names(&ahead.prompt[..whole]);
        let here = on_host.max(ahead.here);
        let found = staging.disk.find(&names, here)?;
        staging.disk.note_use(&found);
        let beginning = Beginning {
            whose: ahead.whose,
            reuse: Reuse::default(),
            tokens: ahead.prompt[..found.pages.len() * PAGE].to_vec(),
            kind: found.state.map(|(kind, _)| kind),
        };
        staging.tickets += 1;
        let pages = (found.pages.len() - here) as u32;
        let patience = ahead.takes.map_or(UNKNOWN, |takes| takes * pages);
        staging.reads.push_back(Read {
            ticket: staging.tickets,
            beginning: Some(beginning),
            secret,
            found,
            incoming: None,
            pieces: vec![],
            started: 0,
            arrived: 0,
            filling: VecDeque::new(),
            patience: patience.max(PATIENCE_MIN),
            begun: Duration::ZERO,
        });
        Some(staging.tickets)
    }

    /// Whether a read is running, or waits for earlier ones.
    pub fn reads(&self, ticket: u64) -> bool {
        let staging = self.staging.as_ref();
        staging.is_some_and(|of| of.reads.iter().any(|read| read.ticket == ticket))
    }

    /// Gives up a ticket, once its prompt has started or never will.
    pub fn forget(&mut self, ticket: u64) {
        let Some(staging) = &mut self.staging else {
            return;
        };
        let at = staging.reads.iter().position(|read| read.ticket == ticket);
        let read = at.and_then(|at| staging.reads.remove(at));
        if let Some(node) = staging.reserved.remove(&ticket) {
            self.index.release(node, true);
        }
        if let Some(incoming) = read.and_then(Read::end) {
            self.give_up(incoming);
        }
    }

    /// Queues a prefix in host memory for writing to the disk; pins its last block until then.
    pub(super) fn queue_write(&mut self, beginning: Beginning, last: NodeId) {
        let is_whole = self.index.is_beginning(last, beginning.pages());
        let most = self.host.pages() / QUEUED_PART;
        let takes = |of: &&mut Staging| {
            let waiting = of.queued.iter().map(|(beginning, _)| beginning.pages());
            is_whole && !of.disk.is_off() && waiting.sum::<usize>() < most
        };
        match self.staging.as_mut().filter(takes) {
            None => self.index.release(last, true),
            Some(staging) => {
                if beginning.kind.is_some() {
                    self.index.will_read(last);
                }
                staging.queued.push_back((beginning, last));
            }
        }
    }

    /// Handles the results of the disk's reads and writes.
    pub(super) fn settle_disk(&mut self, executor: &mut impl Executor) {
        while self.may_fill()
            && let Some(event) = self.staging.as_mut().and_then(|of| of.disk.take())
        {
            match event {
                Event::Off => self.drop_all(),
                Event::Read {
                    ticket,
                    index,
                    piece,
                } => self.take_read(executor, (ticket, index), piece),
            }
        }
        self.finish_read();
        let Some(staging) = &mut self.staging else {
            return;
        };
        let now = staging.disk.now();
        let late = |read: &mut Read| read.incoming.is_some() && now > read.begun + read.patience;
        if let Some(read) = staging.reads.pop_front_if(late) {
            let off = staging.disk.note_pace(false);
            read.end().into_iter().for_each(|of| self.give_up(of));
            off.into_iter().for_each(|_| self.drop_all());
        }
    }

    /// Whether another piece may be copied to host memory; first handles finished copies.
    fn may_fill(&mut self) -> bool {
        let read = self.staging.as_mut().and_then(|of| of.reads.front_mut());
        let Some(read) = read else { return true };
        while let Some(first) = read.filling.front()
            && first.try_recv().is_ok()
        {
            read.filling.pop_front();
        }
        read.filling.len() * self.pieces.page < COPIED_MAX
    }

    /// Takes a piece that was read. If it could not be read, the rest of the prefix is given up.
    fn take_read(
        &mut self,
        executor: &mut impl Executor,
        (ticket, index): (u64, usize),
        piece: Option<disk::Read>,
    ) {
        let Some(staging) = &mut self.staging else {
            return;
        };
        let read = staging.reads.front_mut();
        let Some(read) = read.filter(|read| read.ticket == ticket) else {
            return;
        };
        if let Some((bytes, sum)) = piece {
            let piece = read.pieces[index];
            let range = self.host.range(piece, self.pieces);
            read.filling.push_back(executor.fill(range, bytes));
            self.host.set_sum(piece, sum);
            read.arrived += 1;
        } else if let Some(incoming) = staging.reads.pop_front().and_then(Read::end) {
            self.give_up(incoming);
        }
    }

    /// Adds a prefix to the index when all of it is in host memory.
    fn finish_read(&mut self) {
        let may_fill = self.may_fill();
        let Some(staging) = &mut self.staging else {
            return;
        };
        let is_whole = |read: &mut Read| {
            let begun = read.incoming.is_some() && read.arrived == read.pieces.len();
            may_fill && begun && read.filling.is_empty()
        };
        let Some(read) = staging.reads.pop_front_if(is_whole) else {
            return;
        };
        let ticket = read.ticket;
        let incoming = read.end().expect("its pieces have memory");
        staging.pages_read += incoming.pages.len();
        let off = staging.disk.note_pace(true);
        assert!(off.is_none(), "a disk that is fast is not turned off");
        let (_, last) = self.finish(incoming);
        if let (Some(last), Some(staging)) = (last, &mut self.staging) {
            staging.reserved.insert(ticket, last);
        }
        self.collect();
    }

    /// Drops all reads and writes, as the disk has been turned off.
    fn drop_all(&mut self) {
        let Some(staging) = &mut self.staging else {
            return;
        };
        let reads = std::mem::take(&mut staging.reads);
        let queued = std::mem::take(&mut staging.queued);
        let write = staging.write.take();
        let nodes = queued.into_iter().map(|(_, node)| node);
        for node in nodes.chain(write.map(Write::end)) {
            self.release_written(node);
        }
        let incoming = reads.into_iter().filter_map(Read::end);
        incoming.for_each(|incoming| self.give_up(incoming));
    }

    /// Releases a prefix that is written or need not be written any more.
    fn release_written(&mut self, node: NodeId) {
        if self.index.recurs() {
            self.index.has_read(node);
        }
        self.index.release(node, true);
        self.collect();
    }

    /// Starts reads and writes, which run beside the next step.
    pub(super) fn start_disk(&mut self, executor: &mut impl Executor) {
        self.start_read();
        while self.begin_write() {
            let Some(Staging { disk, write, .. }) = &mut self.staging else {
                return;
            };
            let Some(of) = write else { return };
            while let Some(Ok(piece)) = of.coming.front().map(Receiver::try_recv) {
                let index = of.started - of.coming.len();
                disk.write(index, (piece, self.host.sum(of.pieces[index])));
                of.coming.pop_front();
            }
            while of.started < of.pieces.len()
                && disk.has_hands()
                && of.coming.len() * self.pieces.page < COPIED_MAX
            {
                let range = self.host.range(of.pieces[of.started], self.pieces);
                of.coming.push_back(executor.copy_out(range));
                of.started += 1;
            }
            if of.started < of.pieces.len() || !of.coming.is_empty() {
                return;
            }
            let node = of.node;
            *write = None;
            self.release_written(node);
        }
    }

    /// Starts the first read, or continues with it.
    fn start_read(&mut self) {
        while let Some(read) = self.staging.as_mut().and_then(|of| of.reads.front_mut())
            && let Some(beginning) = read.beginning.take()
        {
            let incoming = self.begin(beginning);
            let pieces = incoming.as_ref().map(Incoming::pieces);
            let Some(Staging { disk, reads, .. }) = &mut self.staging else {
                return;
            };
            match (pieces, reads.front_mut()) {
                (Some(pieces), Some(read)) => {
                    (read.incoming, read.pieces, read.begun) = (incoming, pieces, disk.now());
                }
                // The prefix is in host memory by now, or would replace prefixes of more worth.
                _ => drop(reads.pop_front()),
            }
        }
        let Some(Staging { disk, reads, .. }) = &mut self.staging else {
            return;
        };
        let Some(read) = reads.front_mut() else {
            return;
        };
        let known = read.incoming.as_ref().map_or(0, |of| of.known);
        let state = read.found.state.iter().map(|(_, location)| location);
        let locations = read.found.pages[known..].iter().chain(state);
        for (index, location) in locations.enumerate().skip(read.started) {
            if !disk.has_hands() {
                return;
            }
            disk.read(read.ticket, index, *location, &read.secret);
            read.started += 1;
        }
    }

    /// Starts the next write; returns whether a write is running.
    fn begin_write(&mut self) -> bool {
        let Some(staging) = &mut self.staging else {
            return false;
        };
        if staging.write.is_some() {
            return true;
        }
        if !staging.disk.is_on() || staging.disk.has_draft() {
            return false;
        }
        let Some((beginning, node)) = staging.queued.pop_front() else {
            return false;
        };
        let secret = Secret::of(beginning.whose.0);
        let names = secret.names(&beginning.tokens);
        let of = (secret, beginning.whose.1, beginning.kind);
        let Some(known) = staging.disk.begin(names, of) else {
            self.release_written(node);
            return self.begin_write();
        };
        let (pages, state) = self.index.memory_of(node);
        let pages = pages[known..].iter().map(|page| Piece::Page(*page));
        let pieces = pages.chain(state.map(Piece::State)).collect();
        if let Some(staging) = &mut self.staging {
            staging.write = Some(Write {
                node,
                pieces,
                started: 0,
                coming: VecDeque::new(),
            });
        }
        true
    }
}

#[cfg(test)]
#[path = "staging/tests.rs"]
mod tests;
