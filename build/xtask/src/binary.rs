//! What can be told from the bytes of a binary: ELF sections, libraries it needs, paths, PTX.

/// Paths shorter than this (`/`, `/a`) occur in any binary by chance.
const PATH_BYTES_MIN: usize = 4;

/// A section of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// Offset in the file and size, in bytes. Sections without content in the file have only a
    /// size.
    pub offset: usize,
    pub bytes: usize,
    kind: u32,
    link: usize,
}

/// Kind of a section that takes no room in the file.
const SHT_NOBITS: u32 = 8;
const SHT_DYNAMIC: u32 = 6;
const DT_NEEDED: u64 = 1;

/// `e_machine` of the two hosts that binaries are made for.
pub const MACHINE_X86_64: u16 = 62;
pub const MACHINE_AARCH64: u16 = 183;

/// A 64-bit little-endian ELF file, as the System V ABI describes it.
pub struct Elf<'a> {
    bytes: &'a [u8],
    pub machine: u16,
    pub sections: Vec<Section>,
}

impl<'a> Elf<'a> {
    /// Reads the section table.
    ///
    /// # Errors
    /// If this is no such file, or it is cut short.
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, String> {
        if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err("not a 64-bit little-endian ELF file".to_string());
        }
        let machine = number(bytes, 18, 2)? as u16;
        let table = number(bytes, 40, 8)? as usize;
        let entry_bytes = number(bytes, 58, 2)? as usize;
        let count = number(bytes, 60, 2)? as usize;
        let names = number(bytes, 62, 2)? as usize;
        let mut headers = Vec::with_capacity(count);
        for ix in 0..count {
            headers.push(header(bytes, table + ix * entry_bytes)?);
        }
        let names = headers.get(names).map_or(0, |(_, section)| section.offset);
        let mut sections = Vec::with_capacity(count);
        for (name, section) in headers {
            let name = text(bytes, names + name)?;
            sections.push(Section { name, ..section });
        }
        Ok(Elf {
            bytes,
            machine,
            sections,
        })
    }

    /// Names of the shared libraries that the loader must find.
    ///
    /// # Errors
    /// If the dynamic section points outside the file.
    pub fn needed(&self) -> Result<Vec<String>, String> {
        let Some(dynamic) = self
            .sections
            .iter()
            .find(|section| section.kind == SHT_DYNAMIC)
        else {
            return Ok(vec![]);
        };
        let names = self
            .sections
            .get(dynamic.link)
            .ok_or("the dynamic section names no strings")?;
        let mut needed = Vec::new();
        for at in (dynamic.offset..dynamic.offset + dynamic.bytes).step_by(16) {
            if number(self.bytes, at, 8)? == DT_NEEDED {
                needed.push(text(
                    self.bytes,
                    names.offset + number(self.bytes, at + 8, 8)? as usize,
                )?);
            }
        }
        Ok(needed)
    }
}

fn header(bytes: &[u8], at: usize) -> Result<(usize, Section), String> {
    let kind = number(bytes, at + 4, 4)? as u32;
    let (offset, size) = (
        number(bytes, at + 24, 8)? as usize,
        number(bytes, at + 32, 8)? as usize,
    );
    if kind != SHT_NOBITS && offset.checked_add(size).is_none_or(|end| end > bytes.len()) {
        return Err(format!("a section at byte {offset} ends outside the file"));
    }
    let link = number(bytes, at + 40, 4)? as usize;
    let name = number(bytes, at, 4)? as usize;
    Ok((
        name,
        Section {
            name: String::new(),
            offset,
            bytes: size,
            kind,
            link,
        },
    ))
}

fn number(bytes: &[u8], at: usize, width: usize) -> Result<u64, String> {
    let end = at.checked_add(width).filter(|end| *end <= bytes.len());
    let end = end.ok_or_else(|| format!("the file ends before byte {at}"))?;
    Ok(bytes[at..end]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

fn text(bytes: &[u8], at: usize) -> Result<String, String> {
    let rest = bytes
        .get(at..)
        .ok_or_else(|| format!("the file ends before byte {at}"))?;
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(rest.len());
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

/// Fails if `bytes` contain the folder `path`, and shows where.
///
/// # Errors
/// Says which path, at which byte, and what stands around it.
pub fn refuse_path(bytes: &[u8], path: &str) -> Result<(), String> {
    let needle = format!("{}/", path.trim_end_matches('/'));
    if needle.len() < PATH_BYTES_MIN {
        return Ok(());
    }
    let Some(at) = find(bytes, needle.as_bytes()) else {
        return Ok(());
    };
    let printable = |byte: &&u8| byte.is_ascii_graphic();
    let around: Vec<u8> = bytes[at..]
        .iter()
        .take_while(printable)
        .take(120)
        .copied()
        .collect();
    let around = String::from_utf8_lossy(&around);
    Err(format!(
        "the binary contains a path of this machine, at byte {at}: {around}"
    ))
}

/// Offset of the first `needle` in `bytes`.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(skip) = bytes[from..].iter().position(|byte| *byte == first) {
        let at = from + skip;
        if bytes[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn this_test_needs_libc_and_has_code() {
        let bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        assert!(elf.needed().unwrap().contains(&"libc.so.6".to_string()));
        assert!(
            elf.sections
                .iter()
                .any(|section| section.name == ".text" && section.bytes > 0)
        );
    }

    #[test]
    fn a_file_cut_short_is_an_error() {
        let bytes = own();
        assert!(Elf::parse(&bytes[..bytes.len() / 2]).is_err());
        assert!(Elf::parse(b"#!/bin/sh").is_err());
    }

    #[test]
    fn a_path_is_found_and_shown() {
        let error = refuse_path(b"\0\0/srv/tree/src/a.rs\0", "/srv/tree").unwrap_err();
        assert!(error.contains("at byte 2: /srv/tree/src/a.rs"), "{error}");
        assert_eq!(refuse_path(b"/srv/trees", "/srv/tree"), Ok(()));
        assert_eq!(refuse_path(b"/srv", "/"), Ok(()));
    }
}
