//! Readings and writings whose copies take their time.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::kv::{Kv, Reservation};
use crate::prefix::{Keyed, SnapshotKind, SnapshotPoint};
use crate::tier::disk::testing::Fake;
use crate::tier::testing::prompt;
use step::executor::{DeviceError, SeqRows};
use step::transfer::{PIECE_ALIGN, PieceBytes, Sum, Transfer, at_once, sum};

const PIECES: PieceBytes = PieceBytes {
    page: PIECE_ALIGN,
    state: 2 * PIECE_ALIGN,
    window: 0,
};
/// Pages of the prompt, and of host memory.
const PAGES: usize = 12;
const PAGES_MAX: usize = 40;
const DISK: u64 = 1 << 30;

/// A device whose copies to and from the disk's hands end some time later, and how many are under
/// way.
struct Late {
    host: Arc<Mutex<Vec<u8>>>,
    under_way: Arc<AtomicUsize>,
    transfers: u64,
}

impl Late {
    fn later<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut [u8]) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (give, come) = channel();
        let (host, under_way) = (self.host.clone(), self.under_way.clone());
        under_way.fetch_add(1, Ordering::SeqCst);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(1));
            let made = work(&mut host.lock().unwrap());
            under_way.fetch_sub(1, Ordering::SeqCst);
            let _ = give.send(made);
        });
        come
    }
}

impl Executor for Late {
    const VOCAB: usize = 1;

    fn step(&mut self, _: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        unreachable!("it computes nothing")
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], DeviceError> {
        unreachable!("it computes nothing")
    }

    fn logits_of(&mut self, _: &[usize], _: &mut Vec<f32>) -> Result<(), DeviceError> {
        unreachable!("it computes nothing")
    }

    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        let host = self.host.lock().unwrap();
        let sums = ranges.into_iter().map(|range| sum(&host[range]));
        at_once(sums.collect())
    }

    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.later(move |host| host[range].copy_from_slice(&bytes))
    }

    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        self.later(move |host| host[range].to_vec())
    }

    /// Pieces are numbered where they come to lie.
    fn save(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        let mut host = self.host.lock().unwrap();
        for transfer in transfers {
            self.transfers += 1;
            host[transfer.at..][..PIECES.of(transfer.piece)].fill(self.transfers as u8);
        }
        Ok(())
    }

    fn transferred(&mut self) -> Result<u64, DeviceError> {
        Ok(self.transfers)
    }
}

struct Pair {
    kv: Kv,
    tier: Tier,
    device: Late,
}

/// A disk that has the prompt, host memory that has nothing of it.
fn written(asked: &[TokenId]) -> Pair {
    let bytes = PAGES_MAX * PIECES.page;
    let fake = Fake::default();
    let mut pair = Pair {
        kv: Kv::new((2, 4, 0), PAGES_MAX, PAGES_MAX * PAGE, Keyed::default()),
        tier: Tier::new(bytes, PIECES, Keyed::default()).unwrap(),
        device: Late {
            host: Arc::new(Mutex::new(vec![0; bytes])),
            under_way: Arc::default(),
            transfers: 0,
        },
    };
    pair.tier.open_disk(fake.options(1, DISK));
    pair.go_on(|_| false);
    let Pair { kv, tier, .. } = &mut pair;
    let whose = Reservation {
        owner: 1,
        domain: 1,
        prompt: asked,
        leaves_share: false,
        restorable: 0,
    };
    let begin = kv.reserve(asked.len(), whose).unwrap();
    let (tokens, kind) = (PAGES * PAGE, SnapshotKind::End);
    let state = kv.lend(begin.slot, SnapshotPoint { tokens, kind });
    kv.cache(
        begin.slot,
        &asked[..tokens],
        state.map(|state| (kind, state)),
    );
    let pins = kv.pin(begin.slot, asked);
    pins.into_iter().for_each(|pin| tier.queue_save(pin, kv));
    kv.release(begin.slot, true);
    pair.go_on(|_| false);
    pair.tier.restart(Keyed::default(), fake.options(1, DISK));
    pair.go_on(|_| false);
    pair.device.host.lock().unwrap().fill(0xA5);
    assert_eq!(pair.tier.look_up(1, asked).pages.len(), 0);
    pair
}

impl Pair {
    /// Rounds until nothing is under way, or until it is enough.
    fn go_on(&mut self, mut is_enough: impl FnMut(usize) -> bool) {
        let Pair { kv, tier, device } = self;
        for round in 0.. {
            tier.start(device, kv).unwrap();
            tier.settle(device, kv).unwrap();
            assert!(tier.is_conserved());
            if is_enough(round) || !tier.is_busy() {
                return;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn read(&mut self, asked: &[TokenId]) -> u64 {
        let ticket = self.tier.read_ahead(&ReadAhead {
            whose: (1, 1),
            prompt: asked,
            here: 0,
            takes: None,
        });
        ticket.expect("the disk has it")
    }
}

#[test]
fn what_was_read_is_found_when_all_of_it_is_copied() {
    let asked = prompt(PAGES);
    let mut pair = written(&asked);
    let ticket = pair.read(&asked);
    pair.go_on(|_| false);
    assert!(!pair.tier.reads(ticket));
    let found = pair.tier.look_up(1, &asked);
    let host = pair.device.host.lock().unwrap();
    let first = |page| host[pair.tier.host.range(Piece::Page(page), PIECES)][0];
    let first: Vec<u8> = found.pages.iter().map(|page| first(*page)).collect();
    let numbers: Vec<u8> = (1..=PAGES as u8).collect();
    assert_eq!(first, numbers);
}

#[test]
fn places_of_a_reading_that_is_forgotten_are_free_when_its_copies_have_ended() {
    let asked = prompt(PAGES);
    let mut most = 0;
    for rounds in 0..12 {
        let mut pair = written(&asked);
        let ticket = pair.read(&asked);
        pair.go_on(|round| round == rounds);
        most = most.max(pair.device.under_way.load(Ordering::SeqCst));
        pair.tier.forget(ticket);
        assert_eq!(pair.device.under_way.load(Ordering::SeqCst), 0);
        assert!(pair.tier.is_conserved());
        pair.go_on(|_| false);
    }
    assert!(most > 1, "copies were under way when it was forgotten");
}
