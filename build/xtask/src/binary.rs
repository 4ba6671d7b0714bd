//! Facts read from the bytes of a binary: ELF sections, needed libraries, paths, PTX.

use memchr::memmem;
use object::elf;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, SymbolKind};

/// Shortest path that is searched for: shorter ones (`/`, `/a`) occur in any binary by chance.
const PATH_BYTES_MIN: usize = 4;

/// `e_machine` of an x86-64 host, one of the two kinds that binaries are made for.
pub const MACHINE_X86_64: u16 = elf::EM_X86_64.0;
pub const MACHINE_AARCH64: u16 = elf::EM_AARCH64.0;

/// A 64-bit little-endian ELF file.
pub struct Elf<'a>(ElfFile64<'a, LittleEndian>);

impl<'a> Elf<'a> {
    /// Parses the header tables.
    ///
    /// # Errors
    /// If the file is no 64-bit little-endian ELF, or is cut short.
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, String> {
        let file = ElfFile64::parse(bytes);
        let file = file.map_err(|why| format!("no 64-bit little-endian ELF file: {why}"))?;
        Ok(Elf(file))
    }

    pub fn machine(&self) -> u16 {
        self.0.elf_header().e_machine.get(LittleEndian).0
    }

    /// Name and bytes of each section; `.bss` and its like have a size only.
    pub fn sections(&self) -> Vec<(String, usize)> {
        let name = |name: Result<&str, _>| name.unwrap_or_default().to_string();
        let sections = self.0.sections();
        let sized = sections.map(|each| (name(each.name()), each.size() as usize));
        sized.collect()
    }

    /// Names of the shared libraries that the loader must find.
    ///
    /// # Errors
    /// If the dynamic section points outside the file.
    pub fn needed(&self) -> Result<Vec<String>, String> {
        let table = self.0.elf_dynamic_table().map_err(text)?;
        let needed = table.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
        let name = |entry| Ok(String::from_utf8_lossy(table.string(entry)?).into_owned());
        let names: object::Result<_> = needed.map(name).collect();
        names.map_err(text)
    }

    /// The oldest glibc with all symbols that the binary needs, as (2, 31); (0, 0) for none.
    ///
    /// # Errors
    /// If needed symbols have no versions.
    pub fn glibc(&self) -> Result<(u32, u32), String> {
        let names = self.0.section_by_name(".dynstr");
        let names = names.ok_or("the dynamic section names no strings")?;
        let strings = names.data().map_err(text)?.split(|byte| *byte == 0);
        let versions = strings.filter_map(|name| {
            let name = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
            let mut parts = name.split('.').map(|part| part.parse().ok());
            Some((parts.next()??, parts.next()??))
        });
        Ok(versions.max().unwrap_or((0, 0)))
    }

    /// Name and bytes of each function; none in a stripped file.
    pub fn functions(&self) -> Vec<(String, u64)> {
        let symbols = self.0.symbols();
        let functions = symbols.filter(|each| each.kind() == SymbolKind::Text);
        let named = functions.filter_map(|each| Some((each.name().ok()?.to_string(), each.size())));
        named.collect()
    }

    /// Checks that the binary is position-independent, has no executable stack, and maps relocated
    /// data read-only.
    ///
    /// # Errors
    /// The first property that the binary lacks.
    pub fn hardened(&self) -> Result<(), String> {
        let dynamic = self.0.elf_dynamic_table().map_err(text)?;
        let has = |tag, flag| {
            let mut entries = dynamic.iter();
            entries.any(|entry| entry.tag == tag && entry.val & flag != 0)
        };
        let segments = self.0.elf_program_headers();
        let flags = |kind| {
            let mut each = segments.iter();
            let found = each.find(|each| each.p_type.get(LittleEndian) == kind);
            found.map(|each| each.p_flags.get(LittleEndian).0)
        };
        let runs = |stack: u32| stack & elf::PF_X.0 != 0;
        let why = if !has(elf::DT_FLAGS_1, elf::DF_1_PIE.0) {
            "is not position independent"
        } else if flags(elf::PT_GNU_STACK).is_none_or(runs) {
            "its stack may be run"
        } else if flags(elf::PT_GNU_RELRO).is_none() {
            "has no part that is read-only after loading (RELRO)"
        } else if !has(elf::DT_FLAGS, elf::DF_BIND_NOW.0) {
            "binds symbols late: RELRO is partial"
        } else {
            return Ok(());
        };
        Err(why.to_string())
    }
}

fn text(why: object::Error) -> String {
    why.to_string()
}

/// Fails if `bytes` contain the folder `path`, and shows where.
///
/// # Errors
/// Names the path, its offset, and the bytes around it.
pub fn refuse_path(bytes: &[u8], path: &str) -> Result<(), String> {
    let needle = format!("{}/", path.trim_end_matches('/'));
    if needle.len() < PATH_BYTES_MIN {
        return Ok(());
    }
    let Some(at) = memmem::find(bytes, needle.as_bytes()) else {
        return Ok(());
    };
    let printable = |byte: &&u8| byte.is_ascii_graphic();
    let around = bytes[at..].iter().take_while(printable).take(120);
    let around: Vec<u8> = around.copied().collect();
    let around = String::from_utf8_lossy(&around);
    Err(format!(
        "the binary contains a path of this machine, at byte {at}: {around}"
    ))
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
            elf.sections()
                .iter()
                .any(|(name, bytes)| name == ".text" && *bytes > 0)
        );
    }

    #[test]
    fn this_test_is_hardened_and_tells_when_it_is_not() {
        let mut bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        assert_eq!(elf.hardened(), Ok(()));
        assert!(elf.glibc().unwrap() > (2, 2));
        // Places of the table of segments and of its rows, and of a row's kind and flags.
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (table, row) = (number(32) as usize, usize::from(bytes[54]));
        let kind = elf::PT_GNU_STACK.0.to_le_bytes();
        let mut rows = (table..).step_by(row);
        let stack = rows.find(|at| bytes[*at..*at + 4] == kind).unwrap();
        bytes[stack + 4] |= elf::PF_X.0 as u8;
        let why = Elf::parse(&bytes).unwrap().hardened().unwrap_err();
        assert!(why.contains("stack"), "{why}");
    }

    #[test]
    fn this_test_is_among_its_functions() {
        let bytes = own();
        let functions = Elf::parse(&bytes).unwrap().functions();
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
