//! The constants of the one target that this binary is built for.
//!
//! Everything that is fixed when the binary is built is imported from here and from nowhere else.
//! The constants themselves are generated from `targets/` by the `manifest` crate; their types are
//! below.

use std::borrow::Cow;
use std::time::Duration;

use step::{Facts, ToolFormat, Window};

use crate::shapes::{Attention, PageGroup, largest};

#[path = "../../build/manifest/src/facts.rs"]
mod facts;
#[path = "../../build/manifest/src/table.rs"]
mod table;

pub use facts::{FAMILY, Fact, contradiction, is_vision, unknown_maths};
pub use table::{
    Coding, Dtype, FP8_BLOCK, Format, Kind, MXFP4_GROUP, NVFP4_GROUP, Owner, Piece, Purpose, Role,
    Row, Run, Site, Sites,
};

/// Number format of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// F32, 4 bytes an element.
    F32,
    /// BF16, 2 bytes an element.
    Bf16,
    /// E4M3, a byte an element, and a byte for the power of two of each position of a head.
    Fp8,
}

/// One file of the checkpoint revision that this binary was built for.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointFile {
    /// File name inside the weights directory.
    pub name: &'static str,
    /// Exact size in bytes.
    pub bytes: u64,
    /// Lower-case hexadecimal SHA-256 of the content.
    pub sha256: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/target.rs"));

macro_rules! block_shapes {
    ($($name:ident: $module:ident::$block:ident<$shape:ident> by $($ops:ident)::+,)+) => {
        /// Shape of a block, which also tells the kind of block.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Shape {
            $($shape,)+
        }

        impl Shape {
            /// Name of the shape, for people.
            pub fn name(self) -> &'static str {
                match self {
                    $(Shape::$shape => stringify!($name),)+
                }
            }
        }
    };
}

with_blocks!(block_shapes);

/// Mixer and feed-forward block of the layer at a site.
pub fn blocks_at(site: Site) -> [Option<Shape>; 2] {
    match site {
        Site::Layer(layer) => LAYER_BLOCKS[layer],
        Site::Prediction => PREDICTION_BLOCKS,
        Site::Whole => [None; 2],
    }
}

const _: () = assert!(PAGE == step::PAGE, "engines and kernels cut prompts alike");

/// Positions of the window of layers that have pages of their own; 0 without such layers.
const PAGE_WINDOW: usize = largest(&each_attention![A => match <A as Attention>::PAGES {
    PageGroup::Whole => 0,
    PageGroup::Window => <A as Attention>::WINDOW.expect("a window has positions"),
}]);

/// Pages of the windowed group, if the model has one.
pub const WINDOW: Option<Window> = match PAGE_WINDOW {
    0 => None,
    positions => Some(Window::of(
        positions,
        MAX_SEQUENCES,
        PREFILL_TOKENS,
        SNAPSHOTS,
    )),
};

/// Constants of this target that the server needs.
pub static FACTS: Facts = Facts {
    hardware: HARDWARE,
    model: MODEL,
    quant: QUANT,
    binary: BINARY,
    model_id: MODEL_ID,
    vocab: VOCAB,
    context: MAX_CONTEXT,
    sequences: MAX_SEQUENCES,
    states: STATES,
    snapshots: SNAPSHOTS,
    window: WINDOW,
    drafts: DRAFTS,
    queued: MAX_QUEUED,
    prefill_tokens: PREFILL_TOKENS,
    kv_pages: KV_PAGES,
    reply_gap: Duration::from_millis(REPLY_GAP_MS as u64),
    stop_tokens: STOP_TOKENS,
    added_tokens: ADDED_TOKENS,
    tool_format: TOOL_FORMAT,
    thinking: THINKING_DEFAULT,
    think_open: THINK_OPEN,
    think_close: THINK_CLOSE,
    tokenizer_file: TOKENIZER_FILE,
    template_file: TEMPLATE_FILE,
    temperature: DEFAULT_TEMPERATURE,
    top_k: DEFAULT_TOP_K,
    top_p: DEFAULT_TOP_P,
    embedded: EMBEDDED,
}
.checked();

#[cfg(test)]
mod tests {
    use step::testing::TINY;

    use super::*;

    /// All facts but the files, which are the last.
    fn printed(facts: &Facts) -> String {
        let text = format!("{facts:?}");
        text.split(" embedded: ").next().unwrap().to_owned()
    }

    #[test]
    fn crates_that_serve_any_target_are_tested_with_the_facts_of_one() {
        if BINARY == TINY.binary {
            assert_eq!(printed(&FACTS), printed(&TINY));
            for (name, content) in TINY.embedded {
                assert!(FACTS.embedded_file(name) == Some(*content), "{name}");
            }
        }
    }
}
