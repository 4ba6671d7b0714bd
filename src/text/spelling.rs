//! Spelling of text by tokens, from the decoder of a tokenizer's definition: byte by byte in
//! printable symbols (`ByteLevel`), or as pieces of text with a sign for the blank and tokens for
//! single bytes (SentencePiece vocabularies: Gemma, Llama 2, early Mistral).

use serde_json::Value;

/// Length of a token for a byte in SentencePiece vocabularies, spelt such as `<0xE9>`.
const BYTE_TOKEN_LENGTH: usize = 6;

/// Rule that turns the text of a token into bytes.
#[derive(Debug, PartialEq)]
pub enum Spelling {
    /// Each printable symbol stands for a byte.
    Bytes,
    Pieces(Pieces),
}

/// Rule by which tokens are text, after replacements.
#[derive(Debug, Default, PartialEq)]
pub struct Pieces {
    /// Replacements in each token, in order.
    replaced: Vec<(String, String)>,
    /// Whether tokens such as `<0xE9>` are bytes.
    byte_tokens: bool,
    /// Blanks that each token loses at its start.
    stripped: usize,
    start: TextStart,
}

/// Characters that a decoded text loses at its start: the blank that encoding put before its first
/// word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStart {
    #[default]
    Whole,
    /// This many blanks, if the text has them.
    Blanks(usize),
    /// All blanks of the first token.
    FirstToken,
}

impl Spelling {
    /// Reads the decoder in a tokenizer's definition.
    ///
    /// # Errors
    /// Names the part that is not supported.
    pub fn of(decoder: &Value) -> Result<Spelling, String> {
        let parts = match decoder["type"].as_str() {
            None => return Err("there is no decoder".to_string()),
            Some("ByteLevel") => return Ok(Spelling::Bytes),
            Some("Sequence") => decoder["decoders"]
                .as_array()
                .map_or(&[][..], Vec::as_slice),
            Some(_) => std::slice::from_ref(decoder),
        };
        if let [only] = parts
            && only["type"] == "ByteLevel"
        {
            return Ok(Spelling::Bytes);
        }
        let (mut pieces, mut fused) = (Pieces::default(), false);
        for part in parts {
            pieces.add(part, &mut fused)?;
        }
        Ok(Spelling::Pieces(pieces))
    }

    /// The bytes of a token inside a text.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Spelling::Bytes => symbol_bytes(token),
            Spelling::Pieces(pieces) => pieces.bytes(token),
        }
    }

    /// Characters that a decoded text loses at its start.
    pub fn start(&self) -> TextStart {
        match self {
            Spelling::Bytes => TextStart::Whole,
            Spelling::Pieces(pieces) => pieces.start,
        }
    }
}

impl Pieces {
    /// Adds the next decoder of a sequence; `fused`: whether tokens were joined before it.
    fn add(&mut self, part: &Value, fused: &mut bool) -> Result<(), String> {
        let kind = part["type"].as_str().unwrap_or_default();
        let refused = |what: &str| Err(format!("its decoder {kind} {what}"));
        match kind {
            "Fuse" => *fused = true,
            "ByteFallback" if !*fused => self.byte_tokens = true,
            "Replace" if !*fused => match part["pattern"]["String"].as_str() {
                Some(from) => self
                    .replaced
                    .push((from.to_string(), text(part, "content"))),
                None => return refused("has a pattern that is no text"),
            },
            "Strip" if part["stop"].as_u64().unwrap_or(0) > 0 => {
                return refused("takes away what ends a text");
            }
            "Strip" if text(part, "content") != " " => {
                return refused("takes away what is no blank");
            }
            "Strip" => {
                let blanks = part["start"].as_u64().unwrap_or(0) as usize;
                match *fused {
                    true => self.start = TextStart::Blanks(blanks),
                    false => self.stripped += blanks,
                }
            }
            "Metaspace" if !*fused => {
                self.replaced
                    .push((text(part, "replacement"), " ".to_string()));
                if part["prepend_scheme"] != "never" {
                    self.start = TextStart::FirstToken;
                }
            }
            _ => return refused("is not known here"),
        }
        Ok(())
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        if let Some(byte) = self.byte_tokens.then(|| byte_token(token)).flatten() {
            return vec![byte];
        }
        let mut text = token.to_string();
        for (from, to) in &self.replaced {
            text = text.replace(from, to);
        }
        let blanks = text.len() - text.trim_start_matches(' ').len();
        text.into_bytes().split_off(blanks.min(self.stripped))
    }
}

fn text(part: &Value, name: &str) -> String {
    part[name].as_str().unwrap_or_default().to_string()
}

fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let fits = token.len() == BYTE_TOKEN_LENGTH;
    u8::from_str_radix(digits, 16).ok().filter(|_| fits)
}

/// Bytes for which the printable symbols of a token stand.
fn symbol_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(symbol_byte).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The printable character that stands for `byte` in a byte-level vocabulary (GPT-2's table):
/// printable Latin-1 characters stand for themselves, other bytes follow from U+0100 on.
pub fn byte_symbol(byte: u8) -> char {
    let code = u32::from(byte);
    let shifted = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => code,
        0x00..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + code - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn symbol_byte(symbol: char) -> Option<u8> {
    let code = u32::from(symbol);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn byte_symbols_are_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(symbol_byte(byte_symbol(byte)), Some(byte));
        }
        assert_eq!(byte_symbol(b' '), 'Ġ');
        assert_eq!(byte_symbol(b'\n'), 'Ċ');
    }

    fn sequence(parts: Value) -> Result<Spelling, String> {
        Spelling::of(&json!({"type": "Sequence", "decoders": parts}))
    }

    #[test]
    fn pieces_are_text_with_a_sign_for_the_blank() {
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let fallback = json!({"type": "ByteFallback"});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let spelling = sequence(json!([replace, fallback, {"type": "Fuse"}, strip])).unwrap();
        assert_eq!(spelling.bytes("▁a▁"), b" a ");
        assert_eq!(spelling.bytes("<0xE9>"), [0xe9]);
        assert_eq!(spelling.bytes("<0xE9"), b"<0xE9");
        assert_eq!(spelling.bytes("<0x+9>"), [9], "as the library reads it");
        assert_eq!(spelling.start(), TextStart::Blanks(1));
        let spelling = sequence(json!([strip, replace])).unwrap();
        assert_eq!(
            (spelling.bytes("▁▁a"), spelling.start()),
            (b" a".to_vec(), TextStart::Whole)
        );
    }

    #[test]
    fn decoders_that_are_not_followed_are_named() {
        for (parts, why) in [
            (json!([{"type": "WordPiece"}]), "WordPiece"),
            (
                json!([{"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}]),
                "pattern",
            ),
            (
                json!([{"type": "Strip", "content": " ", "start": 0, "stop": 1}]),
                "ends",
            ),
        ] {
            let error = sequence(parts).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(Spelling::of(&Value::Null).is_err());
    }
}
