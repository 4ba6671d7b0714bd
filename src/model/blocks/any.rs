//! The blocks of the target's model as one enum, generated from the pipeline's list of blocks.

use super::{Block, Loader, Pass};
use crate::ops::{Dense, Draft};
use crate::shapes::{PageGroup, largest};
use crate::target::{self, Shape, with_blocks};
use crate::weights::WeightsError;
use step::executor::DeviceError;

macro_rules! blocks {
    ($($name:ident: $module:ident::$block:ident<$shape:ident> by $($ops:ident)::+,)+) => {
        /// Types of blocks, by the names of their shapes.
        mod kinds {
            $(pub type $shape<B> = crate::blocks::$module::$block<B, crate::target::$shape>;)+
        }

        /// All operations that a backend needs to run the target's model.
        pub trait Runs: Dense + Draft $(+ crate::$($ops)::+<target::$shape>)+ {}

        impl<B: Dense + Draft $(+ crate::$($ops)::+<target::$shape>)+> Runs for B {}

        /// A block of the model.
        pub enum AnyBlock<B: Runs> {
            $($shape(kinds::$shape<B>),)+
        }

        /// Workspace of a step, of every kind of block.
        pub struct Scratch<B: Runs> {
            $($name: <kinds::$shape<B> as Block<B>>::Scratch,)+
        }

        impl Shape {
            /// Bytes of the block's cache in a page of a group; 0 if the block has no cache there.
            pub fn page_bytes<B: Runs>(self, group: PageGroup) -> usize {
                let (of, bytes) = match self {
                    $(Shape::$shape => {
                        (kinds::$shape::<B>::PAGES, kinds::$shape::<B>::PAGE_BYTES)
                    })+
                };
                if of == group { bytes } else { 0 }
            }

            /// Bytes of a sequence in each buffer of the block's recurrent states.
            pub fn state_bytes<B: Runs>(self) -> &'static [usize] {
                match self {
                    $(Shape::$shape => kinds::$shape::<B>::STATE_BYTES,)+
                }
            }

            /// Elements of the vector of zeros that the block has beside its weights.
            pub fn zeros<B: Runs>(self) -> usize {
                match self {
                    $(Shape::$shape => kinds::$shape::<B>::ZEROS,)+
                }
            }

            /// Logits of the block's router, if it has one.
            pub fn router<B: Runs>(self, own: &Scratch<B>) -> Option<&B::Tensor> {
                match self {
                    $(Shape::$shape => kinds::$shape::<B>::router(&own.$name),)+
                }
            }
        }

        impl<B: Runs> AnyBlock<B> {
            /// Widest row that a block leaves in `Stream::mixed`.
            pub const MIXED: usize = largest(&[$(kinds::$shape::<B>::MIXED,)+]);

            /// Widest row that a block computes.
            pub const WIDEST: usize = largest(&[$(largest(kinds::$shape::<B>::WIDTHS),)+]);

            /// Reads the weights of the loader's site as a block of the shape. `# Errors` as
            /// `Block::load`.
            pub fn load(shape: Shape, loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
                Ok(match shape {
                    $(Shape::$shape => AnyBlock::$shape(Block::load(loader)?),)+
                })
            }

            /// Calls [`Block::run`] of the block in this enum.
            pub fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Scratch<B>) {
                match self {
                    $(AnyBlock::$shape(block) => block.run(ops, pass, &mut own.$name),)+
                }
            }
        }

        impl<B: Runs> Scratch<B> {
            /// Widths of the scratch tensors of all blocks.
            pub fn widths() -> impl Iterator<Item = usize> {
                let blocks = [$(kinds::$shape::<B>::WIDTHS,)+];
                blocks.into_iter().flatten().copied()
            }

            /// Workspace for steps of at most `rows` rows.
            ///
            /// # Errors
            /// Too little memory.
            pub fn new(ops: &B, rows: usize) -> Result<Scratch<B>, DeviceError> {
                Ok(Scratch {
                    $($name: kinds::$shape::<B>::scratch(ops, rows)?,)+
                })
            }
        }
    };
}

with_blocks!(blocks);
