//! Share of drafts that hold, by who made them: tried ones and others, since the tokens that came
//! tell of any draft whether it would have held.

use step::executor::{DEPTH_MAX, TokenId};

/// Who made a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Earlier tokens of the sequence.
    Grams,
    /// The model's prediction layer.
    Predictions,
}

impl Maker {
    pub const ALL: [Maker; 2] = [Maker::Grams, Maker::Predictions];
}

/// Weight of what is older, at each look at how often drafts held.
const FADING: f64 = 0.95;
/// Drafts that are thought to have been tried before any was.
const SUPPOSED: f64 = 2.0;
/// Share of them that held, before there was any reply; a reply's own are thought to have held as
/// often as those of others lately.
const SUPPOSED_RATE: f64 = 0.75;
/// Weight of what is older, of all replies.
const FADING_OF_ALL: f64 = 0.998;
/// Chance of a draft that is as good as certain to hold.
const CERTAIN: f64 = 0.99;

/// Drafts behind a token, beside the tokens that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Drafts that it is known of: the first that does not hold is the last.
    pub known: usize,
    pub held: usize,
}

impl Score {
    /// Score of `drafts` where `came` came.
    pub fn of(drafts: &[TokenId], came: &[TokenId]) -> Score {
        let pairs = drafts.iter().zip(came);
        let held = pairs.take_while(|(draft, token)| draft == token).count();
        let known = drafts.len().min(came.len()).min(held + 1);
        Score { known, held }
    }
}

/// Trust in some drafts: how often they hold, each behind those that held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust {
    known: f64,
    held: f64,
}

impl Trust {
    /// Share of drafts that hold, if so many are supposed to.
    pub fn rate(self, supposed: f64) -> f64 {
        (self.held + SUPPOSED * supposed) / (self.known + SUPPOSED)
    }

    /// Notes drafts of a step, if there were any.
    pub fn note(&mut self, score: Score) {
        if score.known > 0 {
            self.fade(FADING);
            self.add(score);
        }
    }

    /// Forgets as much as a step does: what is not drafted for long is thought of as at first.
    pub fn forget(&mut self) {
        self.fade(FADING);
    }

    fn add(&mut self, score: Score) {
        self.known += score.known as f64;
        self.held += score.held as f64;
    }

    fn fade(&mut self, fading: f64) {
        self.known *= fading;
        self.held *= fading;
    }
}

/// Drafts of all replies that one maker made.
#[derive(Debug, Default)]
pub struct Record {
    all: Trust,
    /// Drafts of each place behind the token that is known.
    places: [Trust; DEPTH_MAX],
}

impl Record {
    pub fn note(&mut self, score: Score) {
        self.all.add(score);
        for (at, place) in self.places.iter_mut().take(score.known).enumerate() {
            let held = usize::from(at < score.held);
            place.add(Score { known: 1, held });
        }
    }

    /// Forgets a little, in each step: drafts that do not pay are tried again some time.
    pub fn forget(&mut self) {
        self.all.fade(FADING_OF_ALL);
        let places = self.places.iter_mut();
        places.for_each(|place| place.fade(FADING_OF_ALL));
    }

    /// Share of the drafts that hold.
    pub fn rate(&self) -> f64 {
        self.all.rate(SUPPOSED_RATE)
    }

    /// Chance that a reply's draft at a place holds if those before do: what those of all replies
    /// have there, as much more or less as the reply's own hold more often or less.
    pub fn chance(&self, trust: Trust, place: usize) -> f64 {
        let all = self.rate();
        let there = self.places[place.min(DEPTH_MAX - 1)].rate(all);
        (there * trust.rate(all) / all).min(CERTAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_of(trust: Trust, known: f64, held: f64) -> bool {
        (trust.known - known).abs() < 1e-12 && (trust.held - held).abs() < 1e-12
    }

    const fn score(known: usize, held: usize) -> Score {
        Score { known, held }
    }

    #[test]
    fn drafts_are_known_up_to_the_first_that_does_not_hold() {
        for (drafts, came, wanted) in [
            (&[][..], &[1, 2][..], score(0, 0)),
            (&[1, 2, 3], &[1, 2, 3, 4], score(3, 3)),
            (&[1, 2, 3], &[1, 2], score(2, 2)),
            (&[1, 9, 3], &[1, 2, 3], score(2, 1)),
            (&[9, 2], &[1], score(1, 0)),
        ] {
            assert_eq!(Score::of(drafts, came), wanted, "{drafts:?} {came:?}");
        }
    }

    #[test]
    fn what_is_older_counts_less_at_each_look() {
        let mut trust = Trust::default();
        trust.note(score(2, 2));
        trust.note(score(1, 0));
        assert!(is_of(trust, 2.0 * FADING + 1.0, 2.0 * FADING));
        trust.note(score(0, 0));
        assert!(is_of(trust, 2.0 * FADING + 1.0, 2.0 * FADING));
        trust.forget();
        let faded = 2.0 * FADING * FADING;
        assert!(is_of(trust, faded + FADING, faded));
    }

    #[test]
    fn trust_begins_with_what_is_supposed() {
        assert_eq!(Trust::default().rate(0.25), 0.25);
        let mut trust = Trust::default();
        trust.note(score(4, 1));
        assert_eq!(trust.rate(0.75), 2.5 / 6.0);
    }

    #[test]
    fn what_is_supposed_is_what_held_of_others() {
        let mut record = Record::default();
        assert_eq!(record.rate(), 0.75);
        record.note(score(2, 1));
        assert_eq!(record.rate(), 2.5 / 4.0);
        record.forget();
        assert!(is_of(record.all, 2.0 * FADING_OF_ALL, FADING_OF_ALL));
    }

    #[test]
    fn a_place_has_chances_of_its_own() {
        let mut record = Record::default();
        (0..100).for_each(|_| record.note(score(2, 1)));
        let [first, second] = [0, 1].map(|place| record.chance(Trust::default(), place));
        assert!(first > 0.97 && second < 0.03, "{first} {second}");
        let mut trusted = Trust::default();
        (0..100).for_each(|_| trusted.note(score(1, 1)));
        assert!(record.chance(trusted, 1) > second);
        assert_eq!(record.chance(trusted, 0), CERTAIN);
    }
}
