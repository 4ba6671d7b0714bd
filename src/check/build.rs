//! Build script: `cfg`s of the kinds of blocks that the target's model has, from `model`'s build.

use std::env;

fn main() {
    let kinds = env::var("DEP_MODEL_KINDS").expect("the model's build states kinds of blocks");
    for (kind, has) in kinds.split(' ').filter_map(|kind| kind.split_once('=')) {
        println!("cargo::rustc-check-cfg=cfg(has, values({kind:?}))");
        if has == "true" {
            println!("cargo::rustc-cfg=has={kind:?}");
        }
    }
}
