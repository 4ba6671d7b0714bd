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
const SHT_SYMTAB: u32 = 2;
/// Bytes of a symbol, and the kind of one that is a function.
const SYMBOL_BYTES: usize = 24;
const STT_FUNC: u64 = 2;
const DT_NEEDED: u64 = 1;
const DT_FLAGS: u64 = 30;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_BIND_NOW: u64 = 8;
const DF_1_PIE: u64 = 0x0800_0000;
const PT_GNU_STACK: u64 = 0x6474_e551;
const PT_GNU_RELRO: u64 = 0x6474_e552;
const PF_X: u64 = 1;

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
        let Some(names) = self.dynamic_names() else {
            return Ok(vec![]);
        };
        let needed = self.dynamic()?.into_iter();
        let needed = needed.filter(|(tag, _)| *tag == DT_NEEDED);
        needed
            .map(|(_, at)| text(self.bytes, names.offset + at as usize))
            .collect()
    }

    /// Tags and values of the dynamic section.
    fn dynamic(&self) -> Result<Vec<(u64, u64)>, String> {
        let dynamic = self
            .sections
            .iter()
            .find(|section| section.kind == SHT_DYNAMIC);
        let places = dynamic.map_or(0..0, |found| found.offset..found.offset + found.bytes);
        let entry = |at| Ok((number(self.bytes, at, 8)?, number(self.bytes, at + 8, 8)?));
        places.step_by(16).map(entry).collect()
    }

    /// The strings of the dynamic section.
    fn dynamic_names(&self) -> Option<&Section> {
        let mut sections = self.sections.iter();
        let dynamic = sections.find(|section| section.kind == SHT_DYNAMIC)?;
        self.sections.get(dynamic.link)
    }

    /// The least glibc that has all symbols that are needed, as (2, 31); (0, 0) if none is.
    ///
    /// # Errors
    /// If the dynamic section names no strings.
    pub fn glibc(&self) -> Result<(u32, u32), String> {
        let names = self
            .dynamic_names()
            .ok_or("the dynamic section names no strings")?;
        let strings = &self.bytes[names.offset..names.offset + names.bytes];
        let versions = strings.split(|byte| *byte == 0).filter_map(|name| {
            let name = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
            let mut parts = name.split('.').map(|part| part.parse().ok());
            Some((parts.next()??, parts.next()??))
        });
        Ok(versions.max().unwrap_or((0, 0)))
    }

    /// Names and bytes of the functions; none in a stripped file.
    ///
    /// # Errors
    /// If the table of symbols points outside the file.
    pub fn functions(&self) -> Result<Vec<(String, u64)>, String> {
        let mut sections = self.sections.iter();
        let Some(table) = sections.find(|section| section.kind == SHT_SYMTAB) else {
            return Ok(Vec::new());
        };
        let names = self.sections.get(table.link);
        let names = names.ok_or("the table of symbols has no names")?.offset;
        let places = (table.offset..table.offset + table.bytes).step_by(SYMBOL_BYTES);
        let mut functions = Vec::new();
        for at in places {
            let (name, kind) = (number(self.bytes, at, 4)?, number(self.bytes, at + 4, 1)?);
            if kind & 0xf == STT_FUNC {
                let bytes = number(self.bytes, at + 16, 8)?;
                functions.push((text(self.bytes, names + name as usize)?, bytes));
            }
        }
        Ok(functions)
    }

    /// Whether it loads anywhere, runs no code from its stack, and is read-only where the loader
    /// has been.
    ///
    /// # Errors
    /// The one of these that it lacks.
    pub fn hardened(&self) -> Result<(), String> {
        let dynamic = self.dynamic()?;
        let has = |tag, flag| {
            dynamic
                .iter()
                .any(|(found, value)| *found == tag && value & flag != 0)
        };
        let segments = self.segments()?;
        let flags = |kind| {
            segments
                .iter()
                .find(|(found, _)| *found == kind)
                .map(|(_, flags)| *flags)
        };
        match (flags(PT_GNU_STACK), flags(PT_GNU_RELRO)) {
            _ if !has(DT_FLAGS_1, DF_1_PIE) => Err("is not position independent".to_string()),
            (None, _) => Err("its stack may be run".to_string()),
            (Some(stack), _) if stack & PF_X != 0 => Err("its stack may be run".to_string()),
            (_, None) => Err("has no part that is read-only after loading (RELRO)".to_string()),
            _ if !has(DT_FLAGS, DF_BIND_NOW) => {
                Err("binds symbols late: RELRO is partial".to_string())
            }
            _ => Ok(()),
        }
    }

    /// Kind and flags of the segments.
    fn segments(&self) -> Result<Vec<(u64, u64)>, String> {
        let table = number(self.bytes, 32, 8)? as usize;
        let entry_bytes = number(self.bytes, 54, 2)? as usize;
        let count = number(self.bytes, 56, 2)? as usize;
        let segment = |ix| {
            let at = table + ix * entry_bytes;
            Ok((number(self.bytes, at, 4)?, number(self.bytes, at + 4, 4)?))
        };
        (0..count).map(segment).collect()
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
    fn this_test_is_hardened_and_tells_when_it_is_not() {
        let mut bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        assert_eq!(elf.hardened(), Ok(()));
        assert!(elf.glibc().unwrap() > (2, 2));
        let (table, size) = (
            number(&bytes, 32, 8).unwrap(),
            number(&bytes, 54, 2).unwrap(),
        );
        let segments = elf.segments().unwrap();
        let stack = segments
            .iter()
            .position(|(kind, _)| *kind == PT_GNU_STACK)
            .unwrap();
        bytes[(table + size * stack as u64 + 4) as usize] |= PF_X as u8;
        let why = Elf::parse(&bytes).unwrap().hardened().unwrap_err();
        assert!(why.contains("stack"), "{why}");
    }

    #[test]
    fn this_test_is_among_its_functions() {
        let bytes = own();
        let functions = Elf::parse(&bytes).unwrap().functions().unwrap();
        let named = |name: &str| name.contains("this_test_is_among_its_functions");
        assert!(
            functions
                .iter()
                .any(|(name, bytes)| named(name) && *bytes > 0)
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
