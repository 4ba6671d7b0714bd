//! Device work that is recorded and replayed.

use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys;

use crate::check::check;
use crate::device::{Context, Device, Stream};
use crate::error::CudaError;

/// Recorded launches and copies, which are replayed by one call.
#[derive(Debug)]
pub struct Graph {
    raw: sys::CUgraphExec,
    launches: usize,
    _context: Rc<Context>,
}

impl Graph {
    /// Records the work that `work` puts into `stream`, without running it.
    ///
    /// # Errors
    /// The call that failed, as it does for work that cannot be recorded.
    ///
    /// # Panics
    /// If the device is sealed: a graph takes memory, too.
    pub fn record(
        device: &Device,
        stream: &Stream,
        work: impl FnOnce(),
    ) -> Result<Graph, CudaError> {
        device.context().account().check_open();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is open and records nothing yet.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) };
        check("cuStreamBeginCapture", begun)?;
        work();
        let (mut graph, mut raw) = (ptr::null_mut(), ptr::null_mut());
        let mut launches = 0;
        // SAFETY: the stream records; each call writes one handle, and the graph is freed once.
        unsafe {
            check(
                "cuStreamEndCapture",
                sys::cuStreamEndCapture(stream.raw(), &mut graph),
            )?;
            let counted = sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut launches);
            let made = sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            check("cuGraphInstantiate", made)?;
            // From here on the recording is freed if a call fails.
            let recorded = Graph {
                raw,
                launches,
                _context: device.context(),
            };
            check("cuGraphGetNodes", counted)?;
            Ok(recorded)
        }
    }

    /// Number of recorded kernels and copies.
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Runs the recorded work in `stream`.
    ///
    /// # Safety
    /// Memory that the recorded work uses stays allocated until the stream has passed the work.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are open; the caller keeps the memory that the recorded work uses.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.raw, stream.raw())
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is open; work under way still completes.
        let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
