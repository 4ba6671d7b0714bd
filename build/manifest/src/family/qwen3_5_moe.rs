//! `qwen3_5_moe`: Gated DeltaNet and gated attention in turn, experts in every layer.

use super::blocks::{Place, attention, ends, gdn, moe, norms, prediction};
use crate::schema::model::Mixer;
use crate::table::Row;
use crate::target::Target;

pub(super) fn rows(target: &Target) -> Vec<Row> {
    let (model, decoder) = (&target.model, |mixer| Place::decoder(target, mixer));
    let mut rows = ends(model);
    rows.extend(norms(model, &decoder(None)));
    rows.extend(attention(model, &decoder(Some(Mixer::Attention))));
    rows.extend(gdn(model, &decoder(Some(Mixer::Gdn))));
    rows.extend(moe(target, &decoder(None)));
    let layer = Place::prediction(model);
    rows.extend(prediction(model, &layer));
    rows.extend(norms(model, &layer));
    rows.extend(attention(model, &layer));
    rows.extend(moe(target, &layer));
    rows
}
