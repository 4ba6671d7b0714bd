//! Server-sent events, as far as completions use them: the `data` of each event.
//!
//! Format: WHATWG HTML, section "Server-sent events".

/// Bytes of the longest accepted line; longer lines are errors.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Parser that cuts a byte stream into events, however the bytes arrive.
#[derive(Debug, Default)]
pub struct Reader {
    line: Vec<u8>,
    data: String,
}

impl Reader {
    /// Parses some bytes and passes the data of each event that they complete to `event`.
    ///
    /// # Errors
    /// When a line is not UTF-8 or never ends.
    pub fn feed(&mut self, bytes: &[u8], mut event: impl FnMut(&str)) -> Result<(), String> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                return Err(format!(
                    "a line of the stream exceeds {LINE_BYTES_MAX} bytes"
                ));
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end_line(&mut event)?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self, event: &mut impl FnMut(&str)) -> Result<(), String> {
        let line = str::from_utf8(&self.line).map_err(|_| "the stream is not UTF-8".to_owned())?;
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            if !self.data.is_empty() {
                event(&self.data);
            }
            self.data.clear();
        } else if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": note\r\n\r\nevent: x\ndata: one\n\ndata:two\r\ndata: lines ü\r\n\r\nid: 7\n\n";

    fn events(parts: &[&[u8]]) -> Vec<String> {
        let (mut reader, mut events) = (Reader::default(), Vec::new());
        for part in parts {
            reader
                .feed(part, |data| events.push(data.to_owned()))
                .unwrap();
        }
        events
    }

    #[test]
    fn events_carry_their_data_alone() {
        assert_eq!(events(&[STREAM.as_bytes()]), ["one", "two\nlines ü"]);
    }

    #[test]
    fn where_the_bytes_are_cut_makes_no_difference() {
        let whole = events(&[STREAM.as_bytes()]);
        for cut in 0..STREAM.len() {
            let (left, right) = STREAM.as_bytes().split_at(cut);
            assert_eq!(events(&[left, right]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let mut reader = Reader::default();
        let chunk = vec![b'x'; LINE_BYTES_MAX / 2];
        assert!(reader.feed(&chunk, |_| ()).is_ok());
        assert!(reader.feed(&chunk, |_| ()).is_ok());
        assert!(reader.feed(b"x", |_| ()).is_err());
    }
}
