//! The disk over a storage in memory that fails when it is asked to.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use step::testing::few_or_many;

use super::testing::Fake;
use super::*;
use crate::tier::testing::prompt;
use step::executor::TokenId;
use step::random::Random;

const PIECES: PieceBytes = PieceBytes {
    page: PIECE_ALIGN,
    state: 2 * PIECE_ALIGN,
    window: 0,
};
/// Pages of a beginning.
const PAGES: usize = 5;
/// Bytes of its entry: header, pages and state.
const ENTRY: u64 = ((1 + PAGES + 2) * PIECE_ALIGN) as u64;

fn opened(options: Options) -> Disk {
    let mut disk = Disk::new(options, PIECES);
    while !disk.is_on() && !disk.is_off() {
        wait(&mut disk);
    }
    disk
}

/// Waits for what is under way.
fn wait(disk: &mut Disk) -> Vec<Event> {
    let mut events = vec![];
    while disk.is_busy() {
        events.extend(disk.take());
        thread::sleep(Duration::from_micros(50));
        if !disk.is_on() {
            break;
        }
    }
    events
}

/// A beginning that is one of many.
fn tokens(number: usize) -> Vec<TokenId> {
    let first = number as TokenId;
    let all = prompt(PAGES);
    std::iter::once(first)
        .chain(all)
        .take(PAGES * step::PAGE)
        .collect()
}

fn summed(piece: Vec<u8>) -> Read {
    let sum = sum(&piece);
    (piece, sum)
}

fn piece(number: usize, index: usize) -> Vec<u8> {
    let bytes = if index < PAGES {
        PIECES.page
    } else {
        PIECES.state
    };
    let byte = |at: usize| (number + 7 * index + at / 13) as u8;
    (0..bytes).map(byte).collect()
}

/// Writes a beginning for a domain, which is its owner, too; whether anything had to be.
fn write(disk: &mut Disk, domain: u128, number: usize) -> bool {
    let secret = Secret::of(domain);
    let names = secret.names(&tokens(number));
    let of = (secret, domain as Owner, Some(SnapshotKind::End));
    let Some(known) = disk.begin(names, of) else {
        return false;
    };
    (known..=PAGES).for_each(|index| disk.write(index - known, summed(piece(number, index))));
    wait(disk);
    true
}

/// Result of reading a beginning; an `Err` if it was not all there.
fn read(disk: &mut Disk, domain: u128, number: usize) -> Option<Result<Vec<Vec<u8>>, ()>> {
    let secret = Secret::of(domain);
    let found = disk.find(&secret.names(&tokens(number)), 0)?;
    let (_, state) = found.state?;
    let locations = found.pages.into_iter().chain([state]);
    for (index, location) in locations.enumerate() {
        disk.read(1, index, location, &secret);
    }
    let mut pieces = vec![vec![]; PAGES + 1];
    for event in wait(disk) {
        match event {
            Event::Read {
                index,
                piece: Some(piece),
                ..
            } => {
                assert_eq!(sum(&piece.0), piece.1);
                pieces[index] = piece.0;
            }
            Event::Read { piece: None, .. } | Event::Off => return Some(Err(())),
        }
    }
    Some(Ok(pieces))
}

fn whole(number: usize) -> Option<Result<Vec<Vec<u8>>, ()>> {
    Some(Ok((0..=PAGES).map(|index| piece(number, index)).collect()))
}

#[test]
fn entries_are_read_after_a_restart_and_with_their_key_alone() {
    let fake = Fake::default();
    let mut disk = opened(fake.options(1, 1 << 20));
    assert!(write(&mut disk, 1, 3));
    assert!(!write(&mut disk, 1, 3), "it is there");
    assert_eq!(disk.bytes_used(), ENTRY);
    let mut disk = opened(fake.options(1, 1 << 20));
    assert_eq!(disk.bytes_used(), ENTRY);
    assert_eq!(disk.written_in_a_day(), ENTRY, "by the server before");
    assert!(read(&mut disk, 1, 3) == whole(3));
    assert_eq!(read(&mut disk, 2, 3), None, "another key");
    assert_eq!(read(&mut disk, 1, 4), None, "another prompt");
}

#[test]
fn another_binarys_entries_are_removed() {
    let fake = Fake::default();
    write(&mut opened(fake.options(1, 1 << 20)), 1, 3);
    let mut disk = opened(fake.options(2, 1 << 20));
    assert_eq!((read(&mut disk, 1, 3), disk.bytes_used()), (None, 0));
    assert!(fake.memory().whole.is_empty());
}

/// Flips of a bit, before the start or while the entry is served.
const FLIPS: u64 = few_or_many(1000, 20_000);

#[test]
fn no_flipped_bit_is_used() {
    let fake = Fake::default();
    write(&mut opened(fake.options(1, 1 << 20)), 1, 3);
    let sound = fake.memory().clone();
    let mut missed = 0;
    for number in 0..FLIPS {
        let mut random = Random::new(number);
        let (at, bit) = (random.below(ENTRY as usize), random.below(8));
        let flip = || {
            let mut memory = fake.memory();
            let entry = memory.whole.values_mut().next().expect("it was written");
            entry[at] ^= 1 << bit;
        };
        let is_before = random.chance(0.5);
        *fake.memory() = sound.clone();
        if is_before {
            flip();
        }
        let mut disk = opened(fake.options(1, 1 << 20));
        if !is_before {
            flip();
        }
        let found = read(&mut disk, 1, 3);
        let is_missed = found.as_ref().is_none_or(Result::is_err);
        assert!(is_missed || found == whole(3), "bit {bit} of byte {at}");
        assert!(disk.is_on(), "the disk is sound");
        missed += u64::from(is_missed);
    }
    println!("{missed} of {FLIPS} flips were misses, the others of bytes that nothing needs");
    // Names, tags and padding take a part of the entry.
    assert!(missed > FLIPS * 4 / 5, "{missed}");
}

#[test]
fn a_disk_that_fails_is_turned_off_once_and_a_torn_entry_alone_is_not_used() {
    for (on_read, kind, stays_on) in [
        (false, ErrorKind::StorageFull, false),
        (false, ErrorKind::Other, false),
        (true, ErrorKind::Other, false),
        (true, ErrorKind::UnexpectedEof, true),
        (true, ErrorKind::NotFound, true),
    ] {
        let fake = Fake::default();
        let mut disk = opened(fake.options(1, 1 << 20));
        write(&mut disk, 1, 3);
        match on_read {
            true => fake.memory().faults.read = Some(kind),
            false => fake.memory().faults.write = Some(kind),
        }
        match on_read {
            true => assert_eq!(read(&mut disk, 1, 3), Some(Err(())), "{kind}"),
            false => assert!(write(&mut disk, 1, 4)),
        }
        assert_eq!(disk.is_on(), stays_on, "{kind}");
        fake.memory().faults = Default::default();
        assert_eq!(read(&mut disk, 1, 3), None, "{kind}");
        assert_eq!(write(&mut disk, 1, 5), stays_on, "{kind}");
        assert_eq!(disk.traffic().broken > 0, stays_on);
    }
}

#[test]
fn a_disk_that_does_not_answer_is_turned_off() {
    let fake = Fake::default();
    let mut disk = opened(fake.options(1, 1 << 20));
    write(&mut disk, 1, 3);
    fake.memory().faults.blocked = true;
    let secret = Secret::of(1);
    let found = disk.find(&secret.names(&tokens(3)), 0).unwrap();
    disk.read(1, 0, found.pages[0], &secret);
    disk.set_time(SILENCE_MAX);
    assert!(disk.take().is_none() && disk.is_on());
    disk.set_time(2 * SILENCE_MAX);
    assert!(matches!(disk.take(), Some(Event::Off)));
    assert!(disk.take().is_none() && !disk.is_busy());
    fake.memory().faults.blocked = false;
}

#[test]
fn what_is_written_in_a_day_is_bounded() {
    let fake = Fake::default();
    let limit = Options {
        bytes_a_day: 2 * ENTRY,
        ..fake.options(1, 1 << 20)
    };
    let mut disk = opened(limit);
    assert_eq!(
        [1, 2, 3].map(|of| write(&mut disk, 1, of)),
        [true, true, false]
    );
    assert!(disk.is_on());
    disk.set_time(DAY + Duration::from_secs(1));
    assert!(write(&mut disk, 1, 3));
    assert_eq!(disk.written_in_a_day(), ENTRY);
}

#[test]
fn the_owner_with_most_bytes_loses_its_least_recently_used_entry() {
    let fake = Fake::default();
    let mut disk = opened(fake.options(1, 4 * ENTRY));
    for (domain, number) in [(1, 1), (2, 1), (2, 2), (2, 3)] {
        assert!(write(&mut disk, domain, number));
    }
    let found = disk.find(&Secret::of(2).names(&tokens(1)), 0).unwrap();
    disk.note_use(&found);
    for number in 10..20 {
        assert!(write(&mut disk, 2, number));
        assert!(disk.bytes_used() <= 4 * ENTRY);
        assert!(read(&mut disk, 1, 1) == whole(1), "a flood leaves it");
        let there = [2, 3, 1].map(|of| read(&mut disk, 2, of) == whole(of));
        let left = [number < 10, number < 11, number < 12];
        assert_eq!(there, left, "{number}");
    }
    assert_eq!(fake.memory().whole.len(), 4, "what went is removed");
    assert_eq!(disk.evicted().count, 10);
}

#[test]
fn a_beginning_goes_after_what_goes_on_from_it() {
    let fake = Fake::default();
    let mut disk = opened(fake.options(1, 3 * ENTRY));
    assert!(write(&mut disk, 1, 1));
    let secret = Secret::of(1);
    let longer = [tokens(1), tokens(9)].concat();
    let begun = disk.begin(
        secret.names(&longer),
        (secret.clone(), 1, Some(SnapshotKind::End)),
    );
    assert_eq!(begun, Some(PAGES));
    (0..=PAGES).for_each(|index| disk.write(index, summed(piece(9, index))));
    wait(&mut disk);
    let pages = |disk: &mut Disk| {
        let found = disk.find(&secret.names(&longer), 0);
        found.map_or(0, |found| found.pages.len())
    };
    assert_eq!(pages(&mut disk), 2 * PAGES);
    let found = [2, 3, 4].map(|other| {
        assert!(write(&mut disk, 1, other));
        pages(&mut disk)
    });
    assert_eq!(found, [2 * PAGES, PAGES, 0]);
}
