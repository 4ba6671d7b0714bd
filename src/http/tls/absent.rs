//! Stand-in for TLS in a binary without it; its types have no values.

use std::io;
use std::path::Path;

use tokio::net::TcpStream;

/// Certificate and key in a binary with TLS; no value exists here.
#[derive(Clone, Debug)]
pub enum Tls {}

/// Plain stream under the name of an encrypted one, so that callers compile.
pub type TlsStream = TcpStream;

impl Tls {
    /// # Errors
    /// Always: says how a binary with TLS is built.
    pub fn load(_: &Path, _: &Path) -> Result<Tls, String> {
        Err(
            "this binary has no TLS: build it with `cargo xtask build TARGET --features tls`, or \
             put a proxy in front"
                .to_string(),
        )
    }

    /// Never called, since [`Tls`] has no values.
    pub fn reload(&self) -> Result<(), String> {
        match *self {}
    }

    /// Never called, since [`Tls`] has no values.
    pub async fn accept(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_refused_with_the_way_to_use_them() {
        let error = Tls::load(Path::new("cert.pem"), Path::new("key.pem")).unwrap_err();
        assert!(error.contains("--features tls"), "{error}");
    }
}
