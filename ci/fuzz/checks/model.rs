//! Parts of the binary's model that checks share. It takes long to build, so each part is built
//! once, and none that a check does not use is linked to it.

use std::sync::LazyLock;

use atlas::start::boot::{self, Files};
use model::target;
use text::chat::ChatModel;
use text::tokenizer::Tokenizer;

pub fn chat() -> &'static ChatModel {
    static CHAT: LazyLock<ChatModel> =
        LazyLock::new(|| boot::chat_model(&Files::Embedded).expect("the model is embedded"));
    &CHAT
}

/// The tokenizer by itself, as it is in the files.
pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let mut files = target::EMBEDDED.iter();
        let file = files.find(|(name, _)| *name == target::TOKENIZER_FILE);
        let (_, file) = file.expect("the model is embedded");
        Tokenizer::from_bytes(file, target::VOCAB).expect("it is a tokenizer")
    });
    &TOKENIZER
}
