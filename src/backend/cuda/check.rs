//! The GPU's ops against the CPU's, and their speed beside a plain read's.

mod pack;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use ffi::Event;
use ffi::ops::atlas_bf16;

use super::attend::KvCache;
use super::feed_forward::Experts;
use super::panels::Panels;
use super::{Cuda, Matrix, NEEDED, Tensor, Vector, memory, refused};
use crate::backend::clock::{Clock, Timed};
use crate::backend::cpu::Cpu;
use crate::backend::parity::{
    Calls, DECODED_ROWS, Decoded, Decoding, Kind, Loaded, LongContext, Memory, Probe, ROWS, Random,
    Report, Rowwise, Sequences, distance, kinds, matrices, stored,
};
use crate::engine::executor::DeviceError;
use crate::model::{self, Plan, Runner};
use crate::ops::{Batch, CELL, Delta, Dense, Device, Ends};
use crate::shapes::Delta as _;
use crate::target::{self, DECODE_STEPS, Gdn, HIDDEN, MAX_CONTEXT, MAX_SEQUENCES, PREFILL_TOKENS};
use crate::weights::{self, Stored};

/// Elements before and after every array, which no kernel may touch.
const GUARD: usize = 4096;
/// Fills guards and outputs: as an F32 it is not a number, so what was not written is found.
const POISON: u8 = 0xff;

/// The comparison with the reference.
const CUDA_CPU: &str = "cuda = cpu";
/// A sequence's results beside those of others.
const ALONE: &str = "a sequence alone = in the batch";
/// What `attention` promises.
const APART: &str = "store_kv and attend = attention";

/// Bytes that are read in a measurement: several times the largest second-level cache.
const MEASURED_BYTES: usize = 256 << 20;
/// Timed repetitions, after as many to warm up.
const REPETITIONS: usize = 30;

impl Probe for Cuda {
    fn given(&mut self, width: usize, values: &[f32]) -> Result<Tensor, DeviceError> {
        let mut tensor = self.room(values.len() / width, width)?;
        let written = tensor.values.upload(GUARD, values, &self.queue.stream);
        written.map_err(refused)?;
        Ok(tensor)
    }

    fn room(&mut self, rows: usize, width: usize) -> Result<Tensor, DeviceError> {
        let len = rows * width + 2 * GUARD;
        let mut values = memory::buffer(&self.device, len)?;
        values
            .fill_bytes(POISON, &self.queue.stream)
            .map_err(refused)?;
        Ok(Tensor {
            rows,
            width,
            values,
            cells_f16: false,
            guard: GUARD,
        })
    }

    fn matrix_of(&mut self, stored: &Stored) -> Result<Matrix, DeviceError> {
        self.matrix(&Panels::stacked(std::slice::from_ref(stored)))
    }

    fn vector_of(&mut self, values: &[f32]) -> Result<Vector, DeviceError> {
        Ok(Vector(self.filled(values)?))
    }

    fn experts_of(&mut self, stored: &[[Stored; 3]]) -> Result<Experts, DeviceError> {
        let packed: Vec<[Panels; 2]> = stored.iter().map(Panels::of_expert).collect();
        let bytes = packed[0].each_ref().map(|panels| panels.bytes.len());
        let mut experts = self.experts_room(packed[0][0].storage, bytes)?;
        for (index, both) in packed.iter().enumerate() {
            let rooms = [&mut experts.gate_up, &mut experts.down];
            for (room, panels) in rooms.into_iter().zip(both) {
                let start = index * panels.bytes.len();
                let copied = room.upload(start, &panels.bytes, &self.queue.stream);
                copied.map_err(refused)?;
            }
        }
        Ok(experts)
    }

    fn norm_linear_rounded(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        x: &mut Tensor,
        parts: &mut [(&Matrix, &mut Tensor)],
    ) -> Result<(), DeviceError> {
        self.norm_linear(residual, norm, x, true, parts);
        Ok(())
    }

    fn gated_linear_add_rounded(
        &mut self,
        x: &mut Tensor,
        norm: &Vector,
        z: &Tensor,
        w: &Matrix,
        residual: &mut Tensor,
    ) -> Result<(), DeviceError> {
        self.gated_linear_add(x, norm, z, w, residual);
        Ok(())
    }

    fn lm_head_rounded(
        &mut self,
        residual: &Tensor,
        norm: &Vector,
        w: &Matrix,
        batch: &Batch,
        out: Ends<'_, Cuda>,
    ) -> Result<(), DeviceError> {
        self.lm_head(residual, norm, w, batch, out);
        Ok(())
    }

    fn seen(&mut self, tensor: &Tensor) -> Result<Vec<f32>, DeviceError> {
        let mut found = self.host(tensor.values.len())?;
        self.read(tensor, 0..tensor.rows, &mut found)?;
        let mut all = vec![0.0f32; tensor.values.len()];
        tensor
            .values
            .download(0, &mut all, &self.queue.stream)
            .map_err(refused)?;
        let poison = u32::from_ne_bytes([POISON; 4]);
        let len = tensor.values.len() - 2 * GUARD;
        let mut guards = all[..GUARD].iter().chain(&all[GUARD + len..]);
        match guards.all(|element| element.to_bits() == poison) {
            true => Ok(self.widened(tensor, found.to_vec())),
            false => Err(DeviceError::Failed(
                "memory around an array was written".into(),
            )),
        }
    }

    fn kept(&mut self, cache: &KvCache) -> Result<Vec<f32>, DeviceError> {
        let mut all = vec![atlas_bf16 { bits: 0 }; cache.0.len()];
        let read = cache.0.download(0, &mut all, &self.queue.stream);
        read.map_err(refused)?;
        let wide = all
            .iter()
            .map(|of| f32::from_bits(u32::from(of.bits) << 16));
        Ok(wide.collect())
    }
}

impl Cuda {
    fn matrix(&self, panels: &Panels) -> Result<Matrix, DeviceError> {
        Ok(Matrix {
            n: panels.n,
            k: panels.k,
            storage: panels.storage,
            bytes: self.filled(&panels.bytes)?,
        })
    }

    /// The values of a tensor of the step, whose F16 rows are F32 then.
    fn widened(&self, tensor: &Tensor, mut values: Vec<f32>) -> Vec<f32> {
        let rows = values.chunks_exact_mut(tensor.width).enumerate();
        for (_, row) in rows.filter(|&(row, _)| tensor.cells_f16 && self.step.is_in_cell(row)) {
            for head in row.chunks_exact_mut(Gdn::VALUE_DIM) {
                let pairs = head[..Gdn::VALUE_DIM / 2].iter().map(|pair| pair.to_bits());
                let halves = pairs.flat_map(|pair| [pair as u16, (pair >> 16) as u16]);
                let wide: Vec<_> = halves.map(f32_of_f16).collect();
                head.copy_from_slice(&wide);
            }
        }
        values
    }
}

/// The value of an IEEE 754 binary16 number.
fn f32_of_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction as f32 / (1 << 24) as f32,
        0x1f => f32::from_bits(0xff << 23 | fraction << 13),
        _ => f32::from_bits((exponent + 127 - 15) << 23 | fraction << 13),
    };
    if bits >> 15 == 0 { size } else { -size }
}

/// Compares every op with the CPU on every case.
pub fn parity(report: &mut Report, random: &mut Random) {
    let mut backends = match Cuda::open() {
        Ok(cuda) => Backends {
            cuda,
            cpu: Cpu::default(),
        },
        Err(why) => return report.push("", "", "the GPU can be used", why.to_string(), false),
    };
    if report.wants("pack") {
        pack::parity(report, random, &mut backends.cuda);
    }
    if report.wants_rows() {
        backends.rows(report, random);
    }
    for memory in [
        Memory::ConvSilu,
        Memory::GatedDelta,
        Memory::DeltaNet,
        Memory::DeltaNetAdd,
        Memory::Attend,
        Memory::Attention,
    ]
    .into_iter()
    .filter(|memory| report.wants(memory.op()))
    .collect::<Vec<_>>()
    {
        for steps in schedules() {
            backends.sequences(report, &Sequences::draw(random, memory, steps));
        }
        backends.chunkings(report, random, memory);
    }
    if report.wants("attention") {
        backends.decoding(report, &Decoding::draw(random));
        backends.long_context(report, &LongContext::draw(random));
    }
}

/// Steps of one and of several sequences, prefill and decode, at the edges of pages and splits.
fn schedules() -> Vec<Vec<Vec<(usize, usize)>>> {
    let one = |rows: usize| vec![vec![(0, rows)]];
    let decode = |rows: usize| vec![vec![(0, rows)], vec![(0, 1)], vec![(0, 1)], vec![(0, 3)]];
    let prefill = PREFILL_TOKENS.min(256);
    let every = (0..MAX_SEQUENCES.min(16)).map(|sequence| (sequence, 1 + sequence % 3));
    let every: Vec<_> = every.collect();
    vec![
        one(1),
        one(2),
        one(63),
        one(64),
        one(65),
        decode(63),
        decode(prefill - 2),
        vec![vec![(0, prefill)], vec![(0, 64)], vec![(0, 1)]],
        vec![every.clone(), every.clone(), every],
        vec![
            vec![(0, 64), (1, 5)],
            vec![(0, 1), (1, 1), (2, prefill - 64)],
            vec![(2, 1), (0, 1)],
        ],
    ]
}

struct Backends {
    cuda: Cuda,
    cpu: Cpu,
}

impl Backends {
    /// Every op whose cases are by row.
    fn rows(&mut self, report: &mut Report, random: &mut Random) {
        let matrices = matrices().into_iter();
        let linear: Vec<_> = matrices
            .map(|(n, k, format)| stored(random, n, k, format))
            .flat_map(|matrix| {
                // Nothing but the residual is added to.
                let adds = (matrix.n == HIDDEN).then(|| Kind::LinearAdd(matrix.clone()));
                adds.into_iter().chain([Kind::Linear(matrix)])
            })
            .collect();
        for kind in kinds(random).iter().chain(&linear) {
            if report.wants(kind.op())
                && let Err(why) = self.kind(report, random, kind)
            {
                report.push("", "", "the GPU holds the weights", why.to_string(), false);
            }
        }
    }

    /// All numbers of rows of an op.
    fn kind(
        &mut self,
        report: &mut Report,
        random: &mut Random,
        kind: &Kind,
    ) -> Result<(), DeviceError> {
        let weights = (kind.load(&mut self.cuda)?, kind.load(&mut self.cpu)?);
        for rows in ROWS.into_iter().filter(|&rows| kind.takes(rows)) {
            let case = Rowwise::draw(random, kind, rows);
            let wanted = case.run(&mut self.cpu, &weights.1)?;
            match case.run(&mut self.cuda, &weights.0) {
                Ok(found) => {
                    let shape = case.case();
                    let (shape, both) = ((shape.as_str(), CUDA_CPU), (&found[..], &wanted[..]));
                    nearest(report, case.op(), shape, both, case.limit());
                    self.alone(report, &case, &weights.0, &found);
                }
                Err(why) => {
                    report.push(case.op(), &case.case(), "cuda runs", why.to_string(), false)
                }
            }
        }
        Ok(())
    }

    /// A row gives the same bits alone as among others.
    fn alone(
        &mut self,
        report: &mut Report,
        case: &Rowwise<'_>,
        weights: &Loaded<Cuda>,
        batch: &[Vec<f32>],
    ) {
        if !case.is_by_row() {
            return;
        }
        let mut differ = Vec::new();
        for row in [0, case.rows / 2, case.rows - 1] {
            let alone = case.row(row).run(&mut self.cuda, weights);
            let same = alone.is_ok_and(|alone| {
                let mut pairs = alone.iter().zip(batch);
                pairs.all(|(alone, batch)| {
                    let width = alone.len();
                    bits(alone) == bits(&batch[row * width..][..width])
                })
            });
            if !same {
                differ.push(row);
            }
        }
        let check = "a row alone = the row in the batch";
        let differing = format!("{differ:?}");
        same(
            report,
            (case.op(), &case.case(), check),
            &differing,
            differ.is_empty(),
        );
    }

    fn sequences(&mut self, report: &mut Report, case: &Sequences) {
        let (op, shape) = (case.op(), case.case());
        let wanted = case.run(&mut self.cpu).expect("the CPU runs every case");
        let found = match case.run(&mut self.cuda) {
            Ok(found) => found,
            Err(why) => return report.push(op, &shape, "cuda runs", why.to_string(), false),
        };
        let both = (&found[..], &wanted[..]);
        nearest(report, op, (&shape, CUDA_CPU), both, case.limit());
        self.equal(report, case, &found, ALONE, &case.alone());
    }

    /// A prompt cut anywhere on the grid gives the same bits. Row by row it comes as near as the op
    /// promises. It ends within a cell.
    fn chunkings(&mut self, report: &mut Report, random: &mut Random, memory: Memory) {
        let rows = PREFILL_TOKENS.min(MAX_CONTEXT).min(1024) - CELL / 3;
        let whole = Sequences::draw(random, memory, vec![vec![(0, rows)]]);
        let found = match whole.run(&mut self.cuda) {
            Ok(found) => found,
            Err(why) => return report.push(whole.op(), "", "cuda runs", why.to_string(), false),
        };
        for (chunk, check) in [
            (CELL, "chunks of 64 = whole"),
            (2 * CELL, "chunks of 128 = whole"),
        ] {
            self.equal(report, &whole, &found, check, &cut(&whole, rows, chunk));
        }
        let check = "row by row = whole";
        let by_row = cut(&whole, rows, 1);
        let shape = whole.case();
        match by_row.run(&mut self.cuda) {
            Ok(by_row) => {
                let distances = (found.as_slice(), by_row.as_slice());
                nearest(
                    report,
                    whole.op(),
                    (&shape, check),
                    distances,
                    whole.limit(),
                );
            }
            Err(why) => report.push(whole.op(), &shape, "cuda runs", why.to_string(), false),
        }
    }

    /// Steps of decoding of every number of rows: `attention` leaves the bits of `store_kv` and
    /// `attend`, again when it has run, and those of a sequence alone.
    fn decoding(&mut self, report: &mut Report, case: &Decoding) {
        let op = "attention";
        let wanted = case.run(&mut self.cpu, MAX_SEQUENCES, Calls::Together);
        let wanted = wanted.expect("the CPU runs every case").results;
        let mut alone: Option<Decoded> = None;
        for rows in DECODED_ROWS
            .into_iter()
            .filter(|&rows| rows <= MAX_SEQUENCES)
        {
            let shape = format!("{rows} decoded");
            let found = match case.run(&mut self.cuda, rows, Calls::Together) {
                Ok(found) => found,
                Err(why) => {
                    report.push(op, &shape, "cuda runs", why.to_string(), false);
                    continue;
                }
            };
            let both = (&found.results[..], &wanted[..]);
            nearest(report, op, (&shape, CUDA_CPU), both, case.limit());
            for (calls, check) in [(Calls::Apart, APART), (Calls::Together, "again = at first")] {
                match case.run(&mut self.cuda, rows, calls) {
                    Ok(other) => same_decoded(report, (op, &shape, check), &other, &found),
                    Err(why) => report.push(op, &shape, check, why.to_string(), false),
                }
            }
            match &alone {
                Some(alone) => same_decoded(report, (op, &shape, ALONE), alone, &found),
                None => alone = Some(found),
            }
        }
    }

    /// Few rows behind contexts up to the longest; the same bits beside a copy in other pages, cut
    /// on the grid or into few rows, and by `store_kv` and `attend`.
    fn long_context(&mut self, report: &mut Report, case: &LongContext) {
        let op = "attention";
        let longest = format!("to {MAX_CONTEXT}");
        let whole = (1, MAX_CONTEXT);
        let wanted = case.run(&mut self.cpu, whole, Calls::Together);
        let wanted = wanted.expect("the CPU runs every case");
        let found = match case.run(&mut self.cuda, whole, Calls::Together) {
            Ok(found) => found,
            Err(why) => {
                return report.push(op, &longest, "cuda runs", why.to_string(), false);
            }
        };
        for (step, both) in case.steps.iter().zip(found.iter().zip(&wanted)) {
            let shape = format!("{}..{}", step.start, step.end);
            let both = (&both.0[..], &both.1[..]);
            nearest(report, op, (&shape, CUDA_CPU), both, case.limit());
        }
        for (copies, most, calls, check) in [
            (2, MAX_CONTEXT, Calls::Together, ALONE),
            (1, CELL, Calls::Together, "chunks of 64 = whole"),
            (1, MAX_CONTEXT, Calls::Apart, APART),
        ] {
            let other = case.run(&mut self.cuda, (copies, most), calls);
            let is_same = other.is_ok_and(|other| {
                let mut pairs = other.iter().zip(&found);
                pairs.all(|(other, found)| {
                    let same = |copy: &Vec<f32>| bits(copy) == bits(&found[0]);
                    other.len() == copies && other.iter().all(same)
                })
            });
            same(report, (op, &longest, check), "rows", is_same);
        }
    }

    fn equal(
        &mut self,
        report: &mut Report,
        case: &Sequences,
        found: &[Vec<f32>],
        check: &'static str,
        other: &Sequences,
    ) {
        let is_same = other.run(&mut self.cuda).is_ok_and(|other| {
            let pairs = other.iter().zip(found);
            pairs.clone().count() == found.len()
                && pairs.into_iter().all(|(a, b)| bits(a) == bits(b))
        });
        same(report, (case.op(), &case.case(), check), "rows", is_same);
    }
}

/// The sequence of `whole` in steps of `chunk` rows.
fn cut(whole: &Sequences, rows: usize, chunk: usize) -> Sequences {
    let steps = (0..rows).step_by(chunk);
    whole.in_steps(
        steps
            .map(|done| vec![(0, chunk.min(rows - done))])
            .collect(),
    )
}

/// Reports the result that is furthest from what is wanted.
fn nearest(
    report: &mut Report,
    op: &'static str,
    (shape, check): (&str, &'static str),
    (found, wanted): (&[Vec<f32>], &[Vec<f32>]),
    limit: f64,
) {
    assert_eq!(found.len(), wanted.len());
    let distances = found
        .iter()
        .zip(wanted)
        .map(|(found, wanted)| distance(found, wanted));
    let furthest = distances.reduce(|a, b| match (&a, &b) {
        (Ok(x), Ok(y)) if x >= y => a,
        (Err(_), _) => a,
        _ => b,
    });
    let furthest = furthest.unwrap_or_else(|| Err("no result".into()));
    report.within(op, shape, check, furthest, limit);
}

fn same(
    report: &mut Report,
    (op, shape, check): (&'static str, &str, &'static str),
    differing: &str,
    is_same: bool,
) {
    let found = match is_same {
        true => "same bits".to_string(),
        false => format!("{differing} differ"),
    };
    report.push(op, shape, check, found, is_same);
}

/// Reports whether two runs left the same results and the same cache.
fn same_decoded(
    report: &mut Report,
    about: (&'static str, &str, &'static str),
    other: &Decoded,
    found: &Decoded,
) {
    let pairs = other.results.iter().zip(&found.results);
    let same_rows = pairs
        .clone()
        .all(|(other, found)| bits(other) == bits(found));
    let same_pages = bits(&other.cache) == bits(&found.cache);
    let differing = match (same_rows, same_pages) {
        (false, false) => "rows and pages",
        (true, false) => "pages",
        _ => "rows",
    };
    same(report, about, differing, same_rows && same_pages);
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A table of times: a plain read, every matrix of `linear` at the sizes of steps, the whole model.
///
/// # Errors
/// The GPU cannot be used, or a call failed.
pub fn measure() -> Result<Vec<String>, DeviceError> {
    let mut cuda = Cuda::open()?;
    let part = partition().map(|part| format!("kernels on {part}: figures of a part of this GPU"));
    let mut lines: Vec<String> = part.into_iter().collect();
    lines.push(measure_read(&cuda)?);
    let mut random = Random::seeded(1);
    for (n, k, format) in matrices() {
        let weights = Panels::stacked(&[stored(&mut random, n, k, format)]);
        // Copies of the matrix are taken in turn, so that none is in the cache.
        let copies = (MEASURED_BYTES / weights.bytes.len()).clamp(1, 64);
        let matrices = (0..copies).map(|_| cuda.matrix(&weights));
        let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
        for rows in DECODE_STEPS.iter().copied().chain([PREFILL_TOKENS]) {
            let x = random.bf16(rows * k, 1.0);
            let line = measure_linear(&mut cuda, &matrices, rows, &x)?;
            lines.push(format!("{line} {format:?}"));
        }
    }
    lines.extend(measure_model(cuda)?);
    Ok(lines)
}

/// The whole model with drawn weights: prefill and decode.
fn measure_model(cuda: Cuda) -> Result<Vec<String>, DeviceError> {
    let checkpoint = weights::open_seeded(Arc::default());
    let failed = |error: &dyn Error| DeviceError::Failed(error.to_string());
    let plan = Plan::within(cuda.room(), checkpoint.layout()).map_err(|error| failed(&error))?;
    let start = Instant::now();
    let runner = Runner::load(cuda, &checkpoint, &plan);
    let mut runner = runner.map_err(|error| failed(&error))?;
    let loaded = format!(
        "load          {:.1} s, drawn weights",
        start.elapsed().as_secs_f64()
    );
    let mut lines = vec![loaded];
    lines.extend(model::measure(&mut runner)?);
    Ok(lines)
}

fn measure_read(cuda: &Cuda) -> Result<String, DeviceError> {
    let mut clock = cuda.clock()?;
    let ms = median_ms(&cuda.device, &cuda.queue.stream, || {
        clock.read_bytes(MEASURED_BYTES as u64)
    })?;
    let rate = MEASURED_BYTES as f64 / (ms * 1e6);
    Ok(format!(
        "read_bytes    {MEASURED_BYTES} bytes: {:.1} us, {rate:.0} GB/s",
        ms * 1e3
    ))
}

/// Median time of a product with each of some matrices.
fn measure_linear(
    cuda: &mut Cuda,
    matrices: &[Matrix],
    rows: usize,
    x: &[f32],
) -> Result<String, DeviceError> {
    let Matrix {
        n, k, ref bytes, ..
    } = matrices[0];
    let x = cuda.given(k, x)?;
    let mut out = cuda.room(rows, n)?;
    let (device, stream) = (cuda.device.clone(), cuda.queue.stream.clone());
    let products = || {
        for matrix in matrices {
            cuda.linear(&x, matrix, &mut out);
        }
        Ok(())
    };
    let ms = median_ms(&device, &stream, products)? / matrices.len() as f64;
    let mut host = cuda.host(rows * n)?;
    cuda.read(&out, 0..rows, &mut host)?;
    let moved = bytes.len() + rows * (n + k) * size_of::<f32>();
    let (rate, work) = (
        moved as f64 / (ms * 1e6),
        (2 * rows * n * k) as f64 / (ms * 1e9),
    );
    Ok(format!(
        "linear        {rows} x {n} x {k}: {:.2} us, {rate:.0} GB/s, {work:.1} TFLOP/s",
        ms * 1e3
    ))
}

/// Median time of `work` on the stream, milliseconds.
fn median_ms(
    device: &ffi::Device,
    stream: &ffi::Stream,
    mut work: impl FnMut() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let open = || Event::open(device).map_err(refused);
    let (start, end) = (open()?, open()?);
    let mut times = Vec::with_capacity(REPETITIONS);
    for repetition in 0..2 * REPETITIONS {
        start.record(stream).map_err(refused)?;
        work()?;
        end.record(stream).map_err(refused)?;
        let ms = end.since_ms(&start).map_err(refused)?;
        if repetition >= REPETITIONS {
            times.push(f64::from(ms));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Of the GPU's SMs those that this binary runs on, if not on all.
pub fn partition() -> Option<String> {
    let sms = target::PARTITION?;
    Some(match ffi::probe() {
        Ok(info) => format!("{sms} of {} SMs", info.multiprocessors),
        Err(_) => format!("{sms} SMs"),
    })
}

/// What `doctor` says about the GPU.
///
/// # Errors
/// Why it cannot be used, and what to do about it.
pub fn describe() -> Result<String, String> {
    let info = ffi::probe().map_err(|why| why.to_string())?;
    let ((major, minor), driver) = (info.compute_capability, info.driver_cuda);
    let used = match target::PARTITION {
        Some(sms) => format!(" of which it uses {sms}"),
        None => String::new(),
    };
    let text = format!(
        "{}, compute capability {major}.{minor}, {} SMs{used}, {:.1} GiB, driver for CUDA {}.{}",
        info.name,
        info.multiprocessors,
        info.memory_bytes as f64 / f64::from(1 << 30),
        driver.0,
        driver.1
    );
    match info.check(&NEEDED) {
        Ok(()) => Ok(text),
        Err(why) => Err(format!("{text}; {why}")),
    }
}
