//! The part behind the mixer in the target's layers: experts, or an MLP.

#[cfg(feed_forward = "experts")]
mod kind {
    use crate::blocks::Experts;
    use crate::ops::{Dense, Route};
    use crate::shapes::Experts as _;
    use crate::target::Moe;

    /// Operations that it is written in.
    pub trait Feeds: Dense + Route<Moe> {}

    impl<B: Dense + Route<Moe>> Feeds for B {}

    pub type FeedForward<B> = Experts<B, Moe>;

    /// Routed experts, and how many of them a row visits; 0 without experts.
    pub const ROUTED: [usize; 2] = [Moe::COUNT, Moe::PER_TOKEN];
    /// Logits of a router: of every expert, then of the shared one's gate; 0 without a router.
    pub const ROUTER_LOGITS: usize = Moe::LOGITS;
    /// Whether experts of NVFP4 multiply rows that are rounded to it.
    pub const ROWS_NVFP4: bool = Moe::ROWS_NVFP4;
}

#[cfg(feed_forward = "mlp")]
mod kind {
    use crate::blocks::Mlp;
    use crate::ops::Gate;
    use crate::target;

    /// Operations that it is written in.
    pub trait Feeds: Gate<target::Mlp> {}

    impl<B: Gate<target::Mlp>> Feeds for B {}

    pub type FeedForward<B> = Mlp<B, target::Mlp>;

    /// Routed experts, and how many of them a row visits; 0 without experts.
    pub const ROUTED: [usize; 2] = [0, 0];
    /// Logits of a router: of every expert, then of the shared one's gate; 0 without a router.
    pub const ROUTER_LOGITS: usize = 0;
    /// Whether experts of NVFP4 multiply rows that are rounded to it.
    pub const ROWS_NVFP4: bool = false;
}

pub use kind::{FeedForward, Feeds, ROUTED, ROUTER_LOGITS, ROWS_NVFP4};
