//! Log file with a writer thread of its own, so that no connection waits for a disk.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use host::log;
use host::operator_file::{self, NotWritten};

use super::limits::{JOURNAL_BYTES_MAX, JOURNAL_FLUSH_TIMEOUT, JOURNAL_LINES_MAX};

/// File name that stands for standard output.
pub const STANDARD_OUTPUT: &str = "-";

/// Log file; dropping it writes all queued lines.
#[derive(Debug)]
pub struct Journal {
    /// Queue of lines to write; None while the journal is being dropped.
    lines: Option<SyncSender<Vec<u8>>>,
    /// Bytes of queued lines.
    queued: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    /// Channel that is disconnected once all lines are written, for which the drop waits.
    written: Mutex<Receiver<()>>,
}

impl Journal {
    /// Appends to the file `path`, which gets the permissions `mode`, or to standard output if it
    /// is `-`. Lines that would make the file larger than `bytes_max` are lost.
    ///
    /// # Errors
    /// When the file cannot be opened.
    ///
    /// # Panics
    /// If the system refuses a thread.
    pub fn open(path: &Path, mode: u32, bytes_max: u64) -> io::Result<Journal> {
        let name = path.display().to_string();
        if path.as_os_str() == STANDARD_OUTPUT {
            let out = Out::Stream(Box::new(io::stdout()));
            return Ok(Journal::over(out, name, bytes_max));
        }
        let file = open_file(path, mode)?;
        let bytes_left = bytes_max.saturating_sub(file.metadata()?.len());
        Ok(Journal::over(Out::File(file), name, bytes_left))
    }

    fn over(out: Out, name: String, bytes_left: u64) -> Journal {
        let (sender, lines) = mpsc::sync_channel(JOURNAL_LINES_MAX);
        let (done, written) = mpsc::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            out,
            name,
            bytes_left,
            broken: false,
            queued: queued.clone(),
            lost: lost.clone(),
        };
        let builder = thread::Builder::new().name("journal".to_owned());
        let thread = builder.spawn(move || writer.run(&lines, done));
        thread.expect("the system refuses a thread");
        Journal {
            lines: Some(sender),
            queued,
            lost,
            written: Mutex::new(written),
        }
    }

    /// Queues `line`, which has no line end; counts it as lost if the writer does not keep up.
    pub fn push(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        let bytes = line.len();
        let fits = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes <= JOURNAL_BYTES_MAX;
        let lines = self.lines.as_ref().filter(|_| fits);
        if lines.is_none_or(|lines| lines.try_send(line).is_err()) {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of lines that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        drop(self.lines.take());
        // The wait ends with the thread, or after a limited time if the file accepts no more data.
        let written = self.written.get_mut();
        let written = written.unwrap_or_else(PoisonError::into_inner);
        let _ = written.recv_timeout(JOURNAL_FLUSH_TIMEOUT);
    }
}

/// Opens `path` for appending. A pipe without a reader is refused: waiting might never end.
///
/// # Errors
/// Errors of the operating system; also when the path is a link to a file, or the file has further
/// links: the target might belong to anybody.
fn open_file(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(mode);
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let file = match options.custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            open_device(path, &mut options)?
        }
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            return Err(io::Error::other("it is a pipe that nobody reads"));
        }
        opened => opened?,
    };
    fcntl_setfl(&file, OFlags::APPEND)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        if metadata.nlink() > 1 {
            return Err(linked("the file has other names, by hard links"));
        }
        // A file that existed before may have wider permissions.
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Opens the target of a link if it is not a regular file: `/dev/stdout` is such a link.
fn open_device(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let leads_to_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    if leads_to_file || !path.exists() {
        return Err(linked("it is a symbolic link"));
    }
    let flags = OFlags::NONBLOCK.bits() as i32;
    options.create(false).custom_flags(flags).open(path)
}

fn linked(problem: &str) -> io::Error {
    io::Error::other(format!(
        "{problem}, and what it leads to might be anybody's"
    ))
}

/// Destination of lines.
enum Out {
    /// File to which each line is appended whole or not at all.
    File(File),
    Stream(Box<dyn Write + Send>),
}

impl Out {
    fn append(&mut self, line: &[u8]) -> Result<(), NotWritten> {
        match self {
            Out::File(file) => operator_file::append(file, line),
            Out::Stream(stream) => {
                let written = stream.write_all(line).and_then(|()| stream.flush());
                written.map_err(|why| NotWritten { why, torn: true })
            }
        }
    }
}

struct Writer {
    out: Out,
    name: String,
    /// Bytes that may still be appended.
    bytes_left: u64,
    /// Whether the last line may be incomplete.
    broken: bool,
    queued: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    /// Writes lines until the journal is dropped; dropping `_done` reports that all are written.
    fn run(mut self, lines: &Receiver<Vec<u8>>, _done: Sender<()>) {
        while let Ok(line) = lines.recv() {
            let outcome = self.write(&line);
            self.queued.fetch_sub(line.len(), Ordering::Relaxed);
            if let Err(why) = outcome
                && self.lost.fetch_add(1, Ordering::Relaxed) == 0
            {
                log::line(format_args!("{}: {why}; lines are lost", self.name));
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let bytes_left = self.bytes_left.checked_sub(line.len() as u64);
        self.bytes_left =
            bytes_left.ok_or_else(|| io::Error::other("it is as large as it may become"))?;
        if self.broken {
            self.append(b"\n")?;
        }
        self.append(line)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.out.append(bytes);
        self.broken = match &written {
            Ok(()) => false,
            Err(failed) => self.broken || failed.torn,
        };
        written.map_err(|failed| failed.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::testing::Folder;

    /// Takes what it is given, but fails at every call that `fails` names.
    #[derive(Clone, Default)]
    struct Sink {
        bytes: Arc<Mutex<Vec<u8>>>,
        calls: usize,
        fails: Vec<usize>,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.fails.contains(&self.calls) {
                return Err(io::Error::other("full"));
            }
            self.bytes.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(sink: Sink, bytes_max: u64, lines: &[&str]) -> (String, u64) {
        let journal = Journal::over(
            Out::Stream(Box::new(sink.clone())),
            "sink".to_string(),
            bytes_max,
        );
        for line in lines {
            journal.push(line.as_bytes().to_vec());
        }
        let lost = journal.lost.clone();
        drop(journal);
        let bytes = sink.bytes.lock().unwrap().clone();
        let lost = lost.load(Ordering::Relaxed);
        (String::from_utf8(bytes).unwrap(), lost)
    }

    #[test]
    fn what_was_taken_is_written_before_the_end() {
        let found = written(Sink::default(), u64::MAX, &["a", "b", "c"]);
        assert_eq!(found, ("a\nb\nc\n".to_string(), 0));
    }

    #[test]
    fn a_bound_is_obeyed_at_a_whole_line() {
        let found = written(Sink::default(), 5, &["a", "b", "c", "d"]);
        assert_eq!(found, ("a\nb\n".to_string(), 2));
    }

    #[test]
    fn bytes_on_their_way_are_bounded() {
        let sink = Sink::default();
        let locked = sink.bytes.lock().unwrap();
        let journal = Journal::over(
            Out::Stream(Box::new(sink.clone())),
            "sink".to_string(),
            u64::MAX,
        );
        journal.push(vec![b'x'; JOURNAL_BYTES_MAX - 1]);
        journal.push(Vec::new());
        assert_eq!(journal.lost(), 1);
        drop(locked);
        drop(journal);
        assert_eq!(sink.bytes.lock().unwrap().len(), JOURNAL_BYTES_MAX);
    }

    #[test]
    fn a_line_after_a_failure_stands_alone() {
        let sink = Sink {
            fails: vec![2],
            ..Sink::default()
        };
        let found = written(sink, u64::MAX, &["a", "b", "c"]);
        assert_eq!(found, ("a\n\nc\n".to_string(), 1));
    }

    fn refused(path: &Path) -> String {
        Journal::open(path, 0o600, u64::MAX)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_file_behind_a_link_is_refused_and_left_as_it_is() {
        let folder = Folder::new();
        let (file, link) = (folder.0.join("file"), folder.0.join("link"));
        fs::write(&file, "mine").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(refused(&link).contains("symbolic link"));
        std::os::unix::fs::symlink(folder.0.join("none"), folder.0.join("dangling")).unwrap();
        assert!(refused(&folder.0.join("dangling")).contains("symbolic link"));
        assert!(!folder.0.join("none").exists());
        fs::hard_link(&file, folder.0.join("hard")).unwrap();
        assert!(refused(&file).contains("hard links"));
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(
            (fs::read_to_string(&file).unwrap().as_str(), mode & 0o777),
            ("mine", 0o644)
        );
        // A device is nobody's file.
        std::os::unix::fs::symlink("/dev/null", folder.0.join("device")).unwrap();
        assert!(Journal::open(&folder.0.join("device"), 0o600, u64::MAX).is_ok());
    }

    #[test]
    fn a_pipe_without_a_reader_is_refused_at_once() {
        let folder = Folder::new();
        let pipe = folder.0.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert!(refused(&pipe).contains("nobody reads"));
        let mut reader = OpenOptions::new();
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut reader = reader.read(true).custom_flags(flags).open(&pipe).unwrap();
        let journal = Journal::open(&pipe, 0o600, u64::MAX).unwrap();
        journal.push(b"line".to_vec());
        drop(journal);
        // Waits for the end of the thread that writes.
        fcntl_setfl(&reader, OFlags::empty()).unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "line\n");
    }

    #[test]
    fn a_file_is_appended_to_and_closed_to_others() {
        let folder = Folder::with("log", b"old\n");
        let path = folder.join("log");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        Journal::open(&path, 0o600, u64::MAX)
            .unwrap()
            .push(b"new".to_vec());
        let text = std::fs::read_to_string(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((text.as_str(), mode & 0o777), ("old\nnew\n", 0o600));
        assert!(Journal::open(Path::new("/nowhere/a"), 0o600, 1).is_err());
    }
}
