use super::*;
use step::executor::{PageId, SeqRows};

const VOCAB: usize = 97;
/// Logit by which a fluent model of these tests prefers the right token.
const CONFIDENCE: f32 = 6.0;

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Every token is as likely as any other.
    Noise,
    NotANumber,
    /// Steps of one row prefer less.
    Decode,
    /// A chunk that begins where no largest chunk does has one other bit.
    Cut,
    /// A row after others of its step has one wrong bit.
    Batch,
}

/// A model that knows [`text`] by heart.
struct Reciting {
    fault: Fault,
    rows: Vec<Vec<f32>>,
    /// Rows of the last step whose logits are wanted.
    wanted: Vec<usize>,
    /// KV pages; none if any number will do.
    pages: Option<usize>,
}

/// Longer than a chunk and than a cut.
const LENGTH: usize = CUT + 5 * PAGE + 3;

fn text() -> Vec<TokenId> {
    (0..LENGTH as TokenId)
        .map(|at| (at * at + 3 * at) % VOCAB as TokenId)
        .collect()
}

impl Reciting {
    fn with(fault: Fault) -> Reciting {
        Reciting {
            fault,
            rows: Vec::new(),
            wanted: Vec::new(),
            pages: None,
        }
    }

    /// Logits after the `index`-th token of `sequence`, of sequence `number` of a step.
    fn row(&self, sequence: &SeqRows<'_>, index: usize, number: usize) -> Vec<f32> {
        let position = (sequence.start + index) as TokenId + 1;
        let next = (position * position + 3 * position) % VOCAB as TokenId;
        let mut logits: Vec<f32> = (0..VOCAB).map(|id| (id as f32).sin()).collect();
        let more = match self.fault {
            Fault::Noise => 0.0,
            Fault::NotANumber => f32::NAN,
            Fault::Decode if sequence.tokens.len() == 1 => CONFIDENCE / 2.0,
            _ => CONFIDENCE,
        };
        logits[next as usize] += more;
        let inside = !sequence.start.is_multiple_of(PREFILL_TOKENS);
        let cut = self.fault == Fault::Cut && inside && sequence.tokens.len() > 1;
        if cut || (self.fault == Fault::Batch && number > 0) {
            logits[0] = logits[0].next_up();
        }
        logits
    }
}

impl Executor for Reciting {
    const VOCAB: usize = VOCAB;

    fn pages(&self) -> Option<usize> {
        self.pages
    }

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        let (mut all, mut wanted) = (Vec::new(), Vec::new());
        for (number, sequence) in rows.iter().enumerate() {
            assert!(sequence.pages.len() * PAGE >= sequence.start + sequence.tokens.len());
            let exists = |page: &PageId| self.pages.is_none_or(|pages| (page.0 as usize) < pages);
            assert!(
                sequence.pages.iter().all(exists),
                "a page that there is not"
            );
            let indices = 0..sequence.tokens.len();
            all.extend(indices.map(|index| self.row(sequence, index, number)));
            wanted.push(all.len() - 1);
        }
        (self.rows, self.wanted) = (all, wanted);
        Ok(())
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        Ok(&self.rows[self.wanted[index]])
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        rows.iter().for_each(|&row| logits.extend(&self.rows[row]));
        Ok(())
    }
}

fn found(fault: Fault, bound: TextBound) -> Result<TextReport, TextMismatch> {
    check_text(&mut Reciting::with(fault), &text(), bound)
}

#[test]
fn a_model_that_is_right_passes_with_its_figure() {
    let report = found(Fault::None, TextBound::Plausible).unwrap();
    let decoded = LENGTH.div_ceil(DECODED_SHARE);
    assert_eq!((report.tokens, report.decoded), (LENGTH, decoded));
    assert!(
        report.nats < 1.0 && report.decode_difference == 0.0,
        "{report}"
    );
    assert_eq!(report.companions, COMPANIONS);
    let known = TextBound::Known(report.nats + KNOWN_NATS_WITHIN / 2.0);
    assert!(found(Fault::None, known).is_ok());
}

#[test]
fn a_model_whose_figure_is_another_is_refused() {
    let right = found(Fault::None, TextBound::Plausible).unwrap().nats;
    for off in [-2.0, 2.0] {
        let known = TextBound::Known(right + off * KNOWN_NATS_WITHIN);
        let error = found(Fault::None, known).unwrap_err();
        assert!(matches!(error, TextMismatch::Likelihood { .. }), "{error}");
    }
}

#[test]
fn noise_is_refused_unless_the_weights_are_drawn() {
    // All tokens equally likely would have 4.57 nats in so small a vocabulary.
    let known = TextBound::Known(0.3);
    let error = found(Fault::Noise, known).unwrap_err();
    assert!(matches!(error, TextMismatch::Likelihood { .. }), "{error}");
    assert!(found(Fault::Noise, TextBound::None).is_ok());
    assert!(!TextBound::Plausible.admits(10.0) && TextBound::Plausible.admits(3.5));
}

#[test]
fn a_logit_that_is_no_number_is_refused_whatever_the_bound() {
    for bound in [TextBound::None, TextBound::Plausible, TextBound::Known(1.0)] {
        let error = found(Fault::NotANumber, bound).unwrap_err();
        assert!(matches!(error, TextMismatch::Likelihood { .. }), "{error}");
    }
}

#[test]
fn a_wrong_decode_step_is_found() {
    let error = found(Fault::Decode, TextBound::Plausible).unwrap_err();
    assert!(matches!(error, TextMismatch::Decode { .. }), "{error}");
}

#[test]
fn bits_that_depend_on_the_cut_are_found() {
    let error = found(Fault::Cut, TextBound::Plausible).unwrap_err();
    let by = "when the prompt is cut";
    assert!(
        matches!(error, TextMismatch::Bits { by: found, .. } if found == by),
        "{error}"
    );
}

#[test]
fn bits_that_depend_on_other_sequences_are_found() {
    if COMPANIONS > 0 {
        let error = found(Fault::Batch, TextBound::Plausible).unwrap_err();
        let by = "beside other sequences";
        assert!(
            matches!(error, TextMismatch::Bits { by: found, .. } if found == by),
            "{error}"
        );
    }
}

#[test]
fn a_device_with_pages_for_one_text_is_checked_within_them() {
    let mut model = Reciting {
        pages: Some(LENGTH.div_ceil(PAGE)),
        ..Reciting::with(Fault::None)
    };
    let report = check_text(&mut model, &text(), TextBound::Plausible).unwrap();
    assert_eq!(report.companions, 0);
}

#[test]
fn a_short_text_is_run_whole() {
    let report = check_text(
        &mut Reciting::with(Fault::None),
        &text()[..9],
        TextBound::Plausible,
    );
    let report = report.unwrap();
    assert_eq!((report.tokens, report.decoded), (9, 1));
}
