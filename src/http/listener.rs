//! Listening sockets: an address, or a path in the file system.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, Write};
use std::net::{self, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

/// Permissions of a socket in the file system: the server's user and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Most connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Acceptor of connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// An accepted connection that any runtime can take over; its socket does not block.
#[derive(Debug)]
pub enum Accepted {
    Tcp(net::TcpStream),
    Unix(unix::UnixStream),
}

impl Listener {
    /// Binds `address`; with port 0 the system chooses a free port.
    ///
    /// # Errors
    /// When the system refuses the address.
    pub async fn tcp(address: SocketAddr) -> io::Result<Listener> {
        TcpListener::bind(address).await.map(Listener::Tcp)
    }

    /// Makes a socket at `path`, which is removed with the listener. A stale socket, left by a
    /// server that was killed, is replaced.
    ///
    /// # Errors
    /// When another server listens there, something else has the name, or the system refuses.
    pub async fn unix(path: &Path) -> io::Result<Listener> {
        remove_stale(path).await?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = SocketFile::of(path)?;
        // The mode is set before listening, so that nobody connects whom the mode keeps out.
        fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
        Ok(Listener::Unix(socket.listen(BACKLOG)?, file))
    }

    /// Address that is bound; None for a socket in the file system.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// When the client is gone already, or the system lacks resources.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without this option small events wait for the acknowledgement of earlier ones.
                let _ = stream.set_nodelay(true);
                stream.into_std().map(Accepted::Tcp)
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.into_std().map(Accepted::Unix)
            }
        }
    }
}

impl Accepted {
    /// Writes as much of `bytes` as the socket takes without waiting.
    pub fn write_now(&mut self, bytes: &[u8]) {
        // A failure to answer is ignored: the client is gone.
        let _ = match self {
            Accepted::Tcp(stream) => stream.write(bytes),
            Accepted::Unix(stream) => stream.write(bytes),
        };
    }
}

/// Name of a socket in the file system; dropping the value removes the file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode number of the socket file, so that a newer one of this name is kept.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let identity = identity(&fs::symlink_metadata(path)?);
        let path = path.to_path_buf();
        Ok(SocketFile { path, identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| identity(&found) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes a socket that nobody listens to.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        let problem = "there is a file of that name that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => {
            let problem = "another server listens there";
            Err(io::Error::new(io::ErrorKind::AddrInUse, problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn path() -> PathBuf {
        std::env::temp_dir().join(format!("atlas-socket-{:016x}", random::bits()))
    }

    #[tokio::test]
    async fn a_socket_is_for_user_and_group_and_goes_with_its_listener() {
        let path = path();
        let listener = Listener::unix(&path).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_a_killed_server_left_is_replaced_and_a_live_one_is_not() {
        let path = path();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::unix(&path).await.unwrap();
        let error = Listener::unix(&path).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).await.is_ok());
        // A later socket of that name is not the first listener's to remove.
        fs::remove_file(&path).unwrap();
        let later = Listener::unix(&path).await.unwrap();
        drop(listener);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(later);
    }

    #[tokio::test]
    async fn a_file_of_that_name_is_left_alone() {
        let path = path();
        fs::write(&path, "mine").unwrap();
        let error = Listener::unix(&path).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();
    }
}
