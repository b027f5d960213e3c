//! Whether the dynamic linker would load the preload library into an ELF program.
//!
//! ```text
//! file --- read ---> Facts --- judge (pure) ---> Verdict
//! ```

use object::elf::{self, FileHeader32, FileHeader64, Machine};
use object::endian::Endianness;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionTable, Sym};
use object::read::{FileKind, ReadCache, ReadRef};
use std::fs::File;

/// The machine of this program, for which the library was built too.
#[cfg(target_arch = "x86_64")]
const HOST: (Machine, &str) = (elf::EM_X86_64, "x86-64");
#[cfg(target_arch = "aarch64")]
const HOST: (Machine, &str) = (elf::EM_AARCH64, "aarch64");

/// Whether the library knows the system calls in programs for this machine.
pub(crate) const CAN_LOAD: bool = cfg!(target_arch = "x86_64");

/// Width of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Bits32,
    Bits64,
}

/// The relevant headers of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) class: Class,
    pub(crate) machine: Machine,
    /// PT_INTERP: the dynamic linker; `None` for a static program.
    pub(crate) interpreter: Option<String>,
    /// The sanitizer it was built with.
    pub(crate) sanitizer: Option<&'static str>,
    pub(crate) runtime: Runtime,
    pub(crate) code: Code,
}

/// Where the code of a program runs, and from which compilers it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// At fixed addresses, without code in C: that has headers for exceptions.
    FixedWithoutC,
    Other,
}

/// The code with which a program installs its signal handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Functions of the C library.
    C,
    /// Go's runtime, by system calls of its own.
    Go,
    /// Go's runtime, in a static program that the library loads.
    StaticGo,
}

/// Whether a program can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Served,
    /// Static: no dynamic linker could load the library.
    Static,
    /// Static, in Go: the library loads the program.
    StaticGo,
    ThirtyTwoBit,
    /// Built for another machine, with its name.
    Foreign(String),
    /// Linked with another C library, with its name.
    Musl(String),
    /// Built with a sanitizer, with its name.
    Sanitized(&'static str),
}

/// Decides. For a static program for another machine, the machine is reported, because it has to
/// change first.
pub(crate) fn judge(facts: &Facts) -> Verdict {
    match &facts.interpreter {
        _ if facts.class == Class::Bits32 => Verdict::ThirtyTwoBit,
        _ if facts.machine != HOST.0 => Verdict::Foreign(machine_name(facts.machine)),
        None if is_loadable(facts) => Verdict::StaticGo,
        None => Verdict::Static,
        Some(path) if is_of_musl(path) => Verdict::Musl(path.clone()),
        Some(_) => facts.sanitizer.map_or(Verdict::Served, Verdict::Sanitized),
    }
}

/// Whether the library can load a static program.
fn is_loadable(facts: &Facts) -> bool {
    CAN_LOAD && facts.runtime == Runtime::Go && facts.code == Code::FixedWithoutC
}

/// Why no manager serves the processes of a program; `None`: a manager could.
pub(crate) fn why_not_served(file: &File) -> Option<&'static str> {
    let facts = read(file).ok()?;
    match judge(&facts) {
        Verdict::Static | Verdict::StaticGo | Verdict::Served if facts.runtime == Runtime::Go => {
            Some("is a Go program")
        }
        Verdict::Static | Verdict::StaticGo => Some("is statically linked"),
        Verdict::ThirtyTwoBit => Some("is a 32-bit program"),
        Verdict::Foreign(_) => Some("is a program for another machine"),
        Verdict::Musl(_) => Some("is linked with musl"),
        Verdict::Sanitized(_) => Some("is built with a sanitizer"),
        Verdict::Served => None,
    }
}

/// Whether a path is that of musl's dynamic linker.
fn is_of_musl(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with("ld-musl"))
}

/// The name of the machine that this program and the library were built for.
pub(crate) fn host_name() -> &'static str {
    HOST.1
}

fn machine_name(machine: Machine) -> String {
    let name = match machine {
        elf::EM_MIPS => "MIPS",
        elf::EM_PPC64 => "POWER",
        elf::EM_S390 => "s390x",
        elf::EM_ARM => "ARM",
        elf::EM_X86_64 => "x86-64",
        elf::EM_AARCH64 => "aarch64",
        elf::EM_RISCV => "RISC-V",
        elf::EM_LOONGARCH => "LoongArch",
        Machine(number) => return format!("machine {number}"),
    };
    name.to_owned()
}

/// Reads the headers of an ELF file, and nothing else, because programs can be large.
pub(crate) fn read(file: &File) -> Result<Facts, String> {
    let data = ReadCache::new(file);
    match FileKind::parse(&data) {
        Ok(FileKind::Elf32) => facts::<FileHeader32<Endianness>, _>(&data, Class::Bits32),
        Ok(FileKind::Elf64) => facts::<FileHeader64<Endianness>, _>(&data, Class::Bits64),
        Ok(kind) => Err(format!("unexpected kind {kind:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a library for this machine defines a symbol.
pub(crate) fn defines(file: &File, symbol: &str) -> bool {
    let data = ReadCache::new(file);
    let is_there = || -> object::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(&data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &data)?;
        let symbols = sections.symbols(endian, &data, elf::SHT_DYNSYM)?;
        let mut defined = symbols.iter().filter(|symbol| !symbol.is_undefined(endian));
        let is_it = |of: &[u8]| of == symbol.as_bytes();
        Ok(defined.any(|of| of.name(endian, symbols.strings()).is_ok_and(is_it)))
    };
    is_there().unwrap_or(false)
}

fn facts<'a, H, R>(data: R, class: Class) -> Result<Facts, String>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let read = || -> object::Result<Facts> {
        let header = H::parse(data)?;
        let endian = header.endian()?;
        let mut interpreter = None;
        let sections = header.sections(endian, data)?;
        let needed = needed_sanitizer::<H, R>(&sections, endian, data)?;
        let sanitizer = match needed {
            Some(_) => needed,
            None => own_sanitizer::<H, R>(&sections, endian, data)?,
        };
        let mut runtime = Runtime::C;
        let is_fixed = header.e_type(endian) == elf::ET_EXEC;
        let mut code = if is_fixed { Code::FixedWithoutC } else { Code::Other };
        for segment in header.program_headers(endian, data)? {
            if let Some(path) = segment.interpreter(endian, data)? {
                interpreter = Some(String::from_utf8_lossy(path).into_owned());
            }
            if segment.p_type(endian) == elf::PT_GNU_EH_FRAME {
                code = Code::Other;
            }
            let mut notes = segment.notes(endian, data)?;
            while let Some(note) = notes.as_mut().and_then(|notes| notes.next().ok().flatten()) {
                if note.name() == b"Go" {
                    runtime = Runtime::Go;
                }
            }
        }
        let machine = header.e_machine(endian);
        Ok(Facts { class, machine, interpreter, sanitizer, runtime, code })
    };
    read().map_err(|error| error.to_string())
}

/// Sanitizers by the names of their libraries and of their initialisation functions.
const SANITIZERS: [(&str, &str); 5] = [
    ("hwasan", "HWAddressSanitizer"),
    ("asan", "AddressSanitizer"),
    ("tsan", "ThreadSanitizer"),
    ("lsan", "LeakSanitizer"),
    ("msan", "MemorySanitizer"),
];

/// The sanitizer whose library a program needs.
fn needed_sanitizer<'a, H, R>(
    sections: &SectionTable<'a, H, R>,
    endian: Endianness,
    data: R,
) -> object::Result<Option<&'static str>>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let Some((entries, link)) = sections.dynamic(endian, data)? else { return Ok(None) };
    let strings = sections.strings(endian, data, link)?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED);
    let names = needed.filter_map(|entry| strings.get(entry.val32(endian)?).ok());
    let of = |name: &[u8]| {
        let name = std::str::from_utf8(name).ok()?;
        let is_of = |short: &str| {
            name.starts_with(&format!("lib{short}.so"))
                || name.starts_with(&format!("libclang_rt.{short}"))
        };
        SANITIZERS.iter().find(|(short, _)| is_of(short)).map(|(_, sanitizer)| *sanitizer)
    };
    Ok(names.into_iter().find_map(of))
}

/// The sanitizer that is linked into a program.
fn own_sanitizer<'a, H, R>(
    sections: &SectionTable<'a, H, R>,
    endian: Endianness,
    data: R,
) -> object::Result<Option<&'static str>>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let symbols = sections.symbols(endian, data, kind)?;
        let defined = symbols.iter().filter(|symbol| !symbol.is_undefined(endian));
        let names = defined.filter_map(|symbol| symbol.name(endian, symbols.strings()).ok());
        let of = |name: &[u8]| {
            let short = name.strip_prefix(b"__")?.strip_suffix(b"_init")?;
            SANITIZERS.iter().find(|(known, _)| known.as_bytes() == short)
        };
        if let Some((_, sanitizer)) = names.into_iter().find_map(of) {
            return Ok(Some(sanitizer));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(interpreter: Option<&str>) -> Facts {
        let interpreter = interpreter.map(str::to_owned);
        Facts {
            class: Class::Bits64,
            machine: HOST.0,
            interpreter,
            sanitizer: None,
            runtime: Runtime::C,
            code: Code::FixedWithoutC,
        }
    }

    #[test]
    fn programs_are_judged_by_their_headers() {
        let glibc = Some("/lib64/ld-linux-x86-64.so.2");
        let musl = "/lib/ld-musl-x86_64.so.1";
        let narrow = Facts { class: Class::Bits32, ..facts(glibc) };
        let sanitized = Facts { sanitizer: Some("ThreadSanitizer"), ..facts(glibc) };
        let foreign = Facts { machine: elf::EM_RISCV, ..facts(None) };
        let go = Facts { runtime: Runtime::Go, ..facts(None) };
        let with_c = Facts { code: Code::Other, ..go.clone() };
        let of_go = if CAN_LOAD { Verdict::StaticGo } else { Verdict::Static };
        for (facts, verdict) in [
            (facts(glibc), Verdict::Served),
            (facts(None), Verdict::Static),
            (go, of_go),
            (with_c, Verdict::Static),
            (narrow, Verdict::ThirtyTwoBit),
            (sanitized, Verdict::Sanitized("ThreadSanitizer")),
            (foreign, Verdict::Foreign("RISC-V".to_owned())),
            (facts(Some(musl)), Verdict::Musl(musl.to_owned())),
            (facts(Some("/opt/ld-musl/ld-linux-x86-64.so.2")), Verdict::Served),
        ] {
            assert_eq!(judge(&facts), verdict, "{facts:?}");
        }
    }

    #[test]
    fn this_very_program_can_be_served() {
        let facts = read(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(facts.class, Class::Bits64);
        assert_eq!(judge(&facts), Verdict::Served, "{facts:?}");
    }

    #[test]
    fn a_cut_off_file_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"\x7fELF\x02\x01\x01").unwrap();
        assert!(read(&file).is_err());
    }
}
