//! Choices of an input's head, so that one input is tried in one way and is soon done: over many
//! inputs each way has its turn.

/// Bytes at the head of an input that a [`Cut`] is chosen by.
pub const CUT_BYTES: usize = 3;
/// Places after which the pattern of a [`Cut`] begins again.
const PATTERN_PLACES: usize = u16::BITS as usize;

/// The bytes of an input, taken one after the other; where there are no more, they are 0.
#[derive(Clone, Copy)]
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn of(input: &'a [u8]) -> Choices<'a> {
        Choices(input)
    }

    fn byte(&mut self) -> u8 {
        let first = self.0.split_off_first();
        first.copied().unwrap_or(0)
    }

    /// A number below `count`, which is at most 256.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn cut(&mut self) -> Cut {
        match self.flag() {
            false => Cut::Once(self.number()),
            true => Cut::Pattern(self.number()),
        }
    }

    /// Rest of the input, which is tried.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Where a stream is cut into pieces. Every single place of an input below 64 KiB is reached, and
/// every way of cutting sixteen places in a row, which is longer than most tags: a piece for each
/// character and pieces that end inside two tags are among them.
#[derive(Clone, Copy)]
pub enum Cut {
    /// Before this byte, counted round.
    Once(u16),
    /// Before place `n` if bit `n % 16` is set.
    Pattern(u16),
}

impl Cut {
    fn is_before(self, place: usize) -> bool {
        match self {
            Cut::Once(_) => false,
            Cut::Pattern(bits) => bits >> (place % PATTERN_PLACES) & 1 == 1,
        }
    }

    /// The pieces of `bytes`.
    pub fn bytes<'a>(self, bytes: &'a [u8], mut each: impl FnMut(&'a [u8])) {
        let mut start = match self {
            Cut::Once(at) if !bytes.is_empty() => {
                let (piece, _) = bytes.split_at(usize::from(at) % bytes.len());
                each(piece);
                piece.len()
            }
            _ => 0,
        };
        for at in start + 1..bytes.len() {
            if self.is_before(at) {
                each(&bytes[start..at]);
                start = at;
            }
        }
        each(&bytes[start..]);
    }

    /// The pieces of `text`, cut between characters, which are its places.
    pub fn text<'a>(self, text: &'a str, mut each: impl FnMut(&'a str)) {
        let mut start = 0;
        if let Cut::Once(at) = self
            && !text.is_empty()
        {
            start = text.floor_char_boundary(usize::from(at) % text.len());
            each(&text[..start]);
        }
        for (place, (at, _)) in text.char_indices().enumerate().skip(1) {
            if self.is_before(place) {
                each(&text[start..at]);
                start = at;
            }
        }
        each(&text[start..]);
    }
}
