//! TLS 1.2 and 1.3 by rustls, over the primitives of ring.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use host::operator_file;

/// Bytes of the largest file of certificates, or of a key.
const PEM_BYTES_MAX: u64 = 1024 * 1024;
/// The one protocol that is served over TLS.
const HTTP_1_1: &[u8] = b"http/1.1";

/// The server's certificate and key as their files were when they were last read.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    certificates: PathBuf,
    key: PathBuf,
    /// The lock guards a copy or an assignment, which a panic cannot leave half done.
    acceptor: RwLock<TlsAcceptor>,
}

pub type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the chain of certificates, the server's own first, and its private key: both PEM.
    ///
    /// # Errors
    /// Names the file that cannot be used; also when key and certificate do not match.
    pub fn load(certificates: &Path, key: &Path) -> Result<Tls, String> {
        Ok(Tls(Arc::new(Shared {
            certificates: certificates.to_path_buf(),
            key: key.to_path_buf(),
            acceptor: RwLock::new(read(certificates, key)?),
        })))
    }

    /// Reads both files again, for new connections; open connections keep the old certificate.
    ///
    /// # Errors
    /// Errors of `load`; certificate and key then stay as they were.
    pub fn reload(&self) -> Result<(), String> {
        let acceptor = read(&self.0.certificates, &self.0.key)?;
        let known = self.0.acceptor.write();
        *known.unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    /// Completes the TLS handshake with a client.
    ///
    /// # Errors
    /// When the client does not speak TLS, or no version that is served.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream> {
        let acceptor = self.0.acceptor.read();
        let acceptor = acceptor.unwrap_or_else(PoisonError::into_inner).clone();
        acceptor.accept(stream).await
    }
}

/// Acceptor of connections with the certificates and the key of two files.
fn read(certificates: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let fail = |path: &Path, problem: &dyn fmt::Display| {
        format!("{}: {problem}; it must be PEM", path.display())
    };
    let read = |path| operator_file::read(path, PEM_BYTES_MAX).map_err(|why| fail(path, &why));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificates)?).collect();
    let chain = chain.map_err(|problem| fail(certificates, &problem))?;
    if chain.is_empty() {
        return Err(fail(certificates, &"has no certificate"));
    }
    let key_file = PrivateKeyDer::from_pem_slice(&read(key)?);
    let key_file = key_file.map_err(|problem| fail(key, &problem))?;
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(chain, key_file)
        });
    let mut config = config.map_err(|problem| {
        format!(
            "{} and {}: {problem}",
            certificates.display(),
            key.display()
        )
    })?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::SocketAddr;
    use std::process::Command;
    use step::testing::TINY;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream as ClientStream;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;
    use crate::listener::Listener;
    use crate::random;
    use crate::server::Server;
    use crate::settings::Settings;
    use crate::state::{Loading, ServerState};

    /// A certificate for localhost that vouches for itself, and its key, made by `openssl`.
    struct Pair(PathBuf);

    impl Pair {
        fn make() -> Pair {
            let name = format!("atlas-tls-{:016x}", random::bits());
            let pair = Pair(std::env::temp_dir().join(name));
            fs::create_dir(&pair.0).unwrap();
            let made = Command::new("openssl")
                .args([
                    "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                ])
                .args([
                    "-subj",
                    "/CN=localhost",
                    "-addext",
                    "subjectAltName=DNS:localhost",
                ])
                .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                .arg("-out")
                .arg(pair.certificate())
                .arg("-keyout")
                .arg(pair.key())
                .output()
                .expect("openssl is installed");
            assert!(made.status.success(), "{made:?}");
            pair
        }

        fn certificate(&self) -> PathBuf {
            self.0.join("cert.pem")
        }

        fn key(&self) -> PathBuf {
            self.0.join("key.pem")
        }
    }

    impl Drop for Pair {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn connector(pair: &Pair) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(pair.certificate()).unwrap();
        roots.add(certificate).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    const ASK: &[u8] = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";

    /// A server with `tls`; returns where it listens.
    async fn serve(tls: Tls) -> SocketAddr {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address().unwrap();
        let loading = || Loading {
            stage: "",
            bytes_done: 0,
            bytes_total: 0,
        };
        let state = ServerState::new(&TINY, "m", Settings::default(), loading);
        let server = Server::new(listener, state, 4).with_tls(Some(tls));
        tokio::spawn(server.run(std::future::pending()));
        address
    }

    /// Connects as a client that trusts the certificate of `pair` alone.
    async fn connect(address: SocketAddr, pair: &Pair) -> io::Result<ClientStream<TcpStream>> {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        connector(pair).connect(name, stream).await
    }

    async fn is_answered(stream: &mut ClientStream<TcpStream>) -> bool {
        const EXPECTED: &[u8] = b"HTTP/1.1 200 OK\r\n";
        stream.write_all(ASK).await.unwrap();
        let mut answer = Vec::new();
        while answer.len() < EXPECTED.len() && stream.read_buf(&mut answer).await.unwrap() > 0 {}
        answer.starts_with(EXPECTED)
    }

    #[tokio::test]
    async fn a_request_is_answered_over_tls_and_not_without() {
        let pair = Pair::make();
        let address = serve(Tls::load(&pair.certificate(), &pair.key()).unwrap()).await;
        let mut stream = connect(address, &pair).await.unwrap();
        assert!(is_answered(&mut stream).await);

        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(ASK).await.unwrap();
        let mut answer = Vec::new();
        // A reset is an end like another.
        let _ = plain.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    }

    #[tokio::test]
    async fn a_certificate_that_is_read_again_is_for_the_connections_to_come() {
        let (pair, next) = (Pair::make(), Pair::make());
        let old = Pair::make();
        fs::copy(pair.certificate(), old.certificate()).unwrap();
        let tls = Tls::load(&pair.certificate(), &pair.key()).unwrap();
        let address = serve(tls.clone()).await;
        let mut open = connect(address, &old).await.unwrap();

        fs::copy(next.certificate(), pair.certificate()).unwrap();
        fs::copy(next.key(), pair.key()).unwrap();
        assert!(connect(address, &old).await.is_ok(), "nobody said to read");
        tls.reload().unwrap();
        assert!(connect(address, &old).await.is_err());
        assert!(is_answered(&mut connect(address, &next).await.unwrap()).await);
        assert!(is_answered(&mut open).await);

        // Half of a change: the key is of another certificate.
        fs::copy(old.key(), pair.key()).unwrap();
        let error = tls.reload().unwrap_err();
        assert!(error.contains("cert.pem and "), "{error}");
        assert!(is_answered(&mut connect(address, &next).await.unwrap()).await);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let (pair, other) = (Pair::make(), Pair::make());
        let text = pair.0.join("text.pem");
        fs::write(&text, "no certificate").unwrap();
        for (certificate, key, named) in [
            (&text, &pair.key(), "text.pem"),
            (&pair.certificate(), &text, "text.pem"),
            (&pair.0.join("none.pem"), &pair.key(), "none.pem"),
            (&pair.certificate(), &other.key(), "cert.pem and "),
        ] {
            let error = Tls::load(certificate, key).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
