//! The GPU's ops against the CPU's, and their speed against a copy.

use ffi::ops::atlas_bf16;
use ffi::{CudaError, DeviceBuf, Event};

use super::{AddRmsNormArgs, Cuda, bf16_of, f32_of, refused};
use crate::backend::parity::{
    AddRmsNorm, AddRmsNormResult, BF16_STORED, ROWS, Random, Report, distance,
};
use crate::engine::executor::DeviceError;
use crate::ops::Cost;
use crate::target::{self, HIDDEN};

/// Elements before and after every array, which no kernel may touch.
const GUARD: usize = 4096;
/// Fills guards and outputs: as a BF16 it is not a number, so what was not written is found.
const POISON: u8 = 0xff;

/// Bytes of each array of a measurement: several times the largest second-level cache.
const MEASURED_BYTES: usize = 256 << 20;
/// Timed repetitions, after as many to warm up.
const REPETITIONS: usize = 30;
/// Launches of a small step that are timed together, to see past the clock's grain.
const CHAINED: usize = 200;

/// Compares every op with the CPU on every case.
pub fn parity(report: &mut Report, random: &mut Random) {
    if let Err(why) = compare(report, random) {
        report.push(AddRmsNorm::OP, "", "the GPU can be used", why.0, false);
    }
}

fn compare(report: &mut Report, random: &mut Random) -> Result<(), DeviceError> {
    let cuda = Cuda::open()?;
    for rows in ROWS {
        let case = AddRmsNorm::draw(random, rows);
        let (found, guards) = run(&cuda, &case).map_err(refused)?;
        let shape = case.case();
        add_rms_norm(report, &case, &found);
        let kept = if guards { "untouched" } else { "overwritten" };
        report.push(
            AddRmsNorm::OP,
            &shape,
            "memory around the arrays",
            kept.into(),
            guards,
        );
        alone(&cuda, report, &case, &found).map_err(refused)?;
    }
    Ok(())
}

fn add_rms_norm(report: &mut Report, case: &AddRmsNorm, found: &AddRmsNormResult) {
    let (op, shape) = (AddRmsNorm::OP, case.case());
    let wanted = case.on_cpu_stored_as_bf16();
    let sums = distance(&found.residual, &wanted.residual);
    report.within(op, &shape, "cuda residual = cpu, every bit", sums, 0.0);
    let norms = distance(&found.out, &wanted.out);
    report.within(op, &shape, "cuda out = cpu", norms, BF16_STORED);
}

/// A row gives the same bits alone as among others.
fn alone(
    cuda: &Cuda,
    report: &mut Report,
    case: &AddRmsNorm,
    batch: &AddRmsNormResult,
) -> Result<(), CudaError> {
    let mut differ = Vec::new();
    for row in [0, case.rows / 2, case.rows - 1] {
        let (found, _) = run(cuda, &case.row(row))?;
        let part = |values: &[f32]| bits(&values[row * HIDDEN..][..HIDDEN]);
        let same =
            bits(&found.out) == part(&batch.out) && bits(&found.residual) == part(&batch.residual);
        if !same {
            differ.push(row);
        }
    }
    let found = match differ.is_empty() {
        true => "same bits".to_string(),
        false => format!("rows {differ:?} differ"),
    };
    let check = "a row alone = the row in the batch";
    report.push(
        AddRmsNorm::OP,
        &case.case(),
        check,
        found,
        differ.is_empty(),
    );
    Ok(())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// An array between two guards.
struct Guarded {
    all: DeviceBuf<atlas_bf16>,
    len: usize,
}

impl Guarded {
    /// An array with `values`.
    fn of(cuda: &Cuda, values: &[f32]) -> Result<Guarded, CudaError> {
        let poison = atlas_bf16 {
            bits: u16::from_ne_bytes([POISON; 2]),
        };
        let mut host = vec![poison; values.len() + 2 * GUARD];
        let array = &mut host[GUARD..][..values.len()];
        array
            .iter_mut()
            .zip(values)
            .for_each(|(to, &value)| *to = bf16_of(value));
        let mut all = DeviceBuf::uninit(&cuda.device, host.len())?;
        all.upload(&host, &cuda.stream)?;
        Ok(Guarded {
            all,
            len: values.len(),
        })
    }

    /// An array of poison.
    fn poisoned(cuda: &Cuda, len: usize) -> Result<Guarded, CudaError> {
        let mut all = DeviceBuf::uninit(&cuda.device, len + 2 * GUARD)?;
        all.fill_bytes(POISON, &cuda.stream)?;
        Ok(Guarded { all, len })
    }

    /// Address of the array.
    fn at(&mut self) -> *mut atlas_bf16 {
        self.all.as_mut_ptr().wrapping_add(GUARD)
    }

    /// The values, and whether both guards are as they were.
    fn read(&self, cuda: &Cuda) -> Result<(Vec<f32>, bool), CudaError> {
        let mut host = vec![atlas_bf16 { bits: 0 }; self.all.len()];
        self.all.download(&mut host, &cuda.stream)?;
        let poison = u16::from_ne_bytes([POISON; 2]);
        let guards = host[..GUARD].iter().chain(&host[GUARD + self.len..]);
        let kept = guards.into_iter().all(|element| element.bits == poison);
        let values = host[GUARD..][..self.len].iter().map(|&value| f32_of(value));
        Ok((values.collect(), kept))
    }
}

/// Runs the kernel on a case; the flag is whether it kept to its arrays.
fn run(cuda: &Cuda, case: &AddRmsNorm) -> Result<(AddRmsNormResult, bool), CudaError> {
    let mut x = Guarded::of(cuda, &case.x)?;
    let mut residual = Guarded::of(cuda, &case.residual)?;
    let mut weight = Guarded::of(cuda, &case.weight)?;
    let mut out = Guarded::poisoned(cuda, case.x.len())?;
    let args = AddRmsNormArgs {
        x: x.at(),
        residual: residual.at(),
        weight: weight.at(),
        out: out.at(),
        rows: case.rows,
    };
    // SAFETY: each array has its shape, GUARD keeps it aligned, and all live until they are read.
    unsafe { cuda.launch_add_rms_norm(args)? };
    let (read_out, out_kept) = out.read(cuda)?;
    let (read_residual, residual_kept) = residual.read(cuda)?;
    let inputs_kept = x.read(cuda)? == (case.x.clone(), true)
        && weight.read(cuda)? == (case.weight.clone(), true);
    let result = AddRmsNormResult {
        residual: read_residual,
        out: read_out,
    };
    Ok((result, out_kept && residual_kept && inputs_kept))
}

/// A table of times: the op at a size that fills the GPU, a copy of as many bytes, small steps.
///
/// # Errors
/// The GPU cannot be used, or a call failed.
pub fn measure() -> Result<Vec<String>, DeviceError> {
    let cuda = Cuda::open()?;
    measure_on(&cuda).map_err(refused)
}

fn measure_on(cuda: &Cuda) -> Result<Vec<String>, CudaError> {
    let rows = MEASURED_BYTES / size_of::<atlas_bf16>() / HIDDEN;
    let mut arrays = Arrays::draw(cuda, rows)?;
    let bytes = Cost::add_rms_norm(rows, HIDDEN, size_of::<atlas_bf16>()).bytes as f64;
    let copied = 2.0 * arrays.x.bytes() as f64;
    let copy_ms = median_ms(cuda, || arrays.out.copy_from(&arrays.x, &cuda.stream))?;
    let args = arrays.args(rows);
    // SAFETY: the arrays hold `rows` rows and outlive the timing.
    let op_ms = median_ms(cuda, || unsafe { cuda.launch_add_rms_norm(args) })?;
    let rate = |bytes: f64, ms: f64| bytes / (ms * 1e6);
    let (copy, op) = (rate(copied, copy_ms), rate(bytes, op_ms));
    let mut lines = vec![
        format!(
            "copy          {MEASURED_BYTES} bytes: {:.1} us, {copy:.0} GB/s",
            copy_ms * 1e3
        ),
        format!(
            "add_rms_norm  {rows} x {HIDDEN}: {:.1} us, {op:.0} GB/s, {:.1} % of the copy",
            op_ms * 1e3,
            100.0 * op / copy
        ),
    ];
    for &rows in target::DECODE_STEPS {
        let args = arrays.args(rows);
        let chain = || {
            // SAFETY: as above.
            (0..CHAINED).try_for_each(|_| unsafe { cuda.launch_add_rms_norm(args) })
        };
        let us = median_ms(cuda, chain)? * 1e3 / CHAINED as f64;
        lines.push(format!(
            "add_rms_norm  {rows} x {HIDDEN}: {us:.2} us a launch, chained"
        ));
    }
    Ok(lines)
}

/// Arrays of a measurement.
struct Arrays {
    x: DeviceBuf<atlas_bf16>,
    residual: DeviceBuf<atlas_bf16>,
    weight: DeviceBuf<atlas_bf16>,
    out: DeviceBuf<atlas_bf16>,
}

impl Arrays {
    /// Random values: memory full of zeros can be quicker than real data.
    fn draw(cuda: &Cuda, rows: usize) -> Result<Arrays, CudaError> {
        let array = |count: usize, seed: u64| -> Result<DeviceBuf<atlas_bf16>, CudaError> {
            let values = Random::seeded(seed).bf16(count, 1.0);
            let host: Vec<_> = values.into_iter().map(bf16_of).collect();
            let mut buffer = DeviceBuf::uninit(&cuda.device, count)?;
            buffer.upload(&host, &cuda.stream)?;
            Ok(buffer)
        };
        Ok(Arrays {
            x: array(rows * HIDDEN, 1)?,
            residual: array(rows * HIDDEN, 2)?,
            weight: array(HIDDEN, 3)?,
            out: DeviceBuf::uninit(&cuda.device, rows * HIDDEN)?,
        })
    }

    fn args(&mut self, rows: usize) -> AddRmsNormArgs {
        AddRmsNormArgs {
            x: self.x.as_ptr(),
            residual: self.residual.as_mut_ptr(),
            weight: self.weight.as_ptr(),
            out: self.out.as_mut_ptr(),
            rows,
        }
    }
}

/// Median time of `work` on the stream, milliseconds.
fn median_ms(
    cuda: &Cuda,
    mut work: impl FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let (start, end) = (Event::open(&cuda.device)?, Event::open(&cuda.device)?);
    let mut times = Vec::with_capacity(REPETITIONS);
    for repetition in 0..2 * REPETITIONS {
        start.record(&cuda.stream)?;
        work()?;
        end.record(&cuda.stream)?;
        let ms = end.since_ms(&start)?;
        if repetition >= REPETITIONS {
            times.push(f64::from(ms));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// What `doctor` says about the GPU.
///
/// # Errors
/// Why it cannot be used, and what to do about it.
pub fn describe() -> Result<String, String> {
    let info = ffi::probe().map_err(|why| why.to_string())?;
    let ((major, minor), driver) = (info.compute_capability, info.driver_cuda);
    let text = format!(
        "{}, compute capability {major}.{minor}, {} SMs, {:.1} GiB, driver for CUDA {}.{}",
        info.name,
        info.multiprocessors,
        info.memory_bytes as f64 / f64::from(1 << 30),
        driver.0,
        driver.1
    );
    let (needed_major, needed_minor) = target::COMPUTE_CAPABILITY;
    match info.compute_capability == target::COMPUTE_CAPABILITY {
        true => Ok(text),
        false => Err(format!(
            "{text}; this binary is compiled for {needed_major}.{needed_minor} alone. Download \
             the binary for this GPU"
        )),
    }
}
