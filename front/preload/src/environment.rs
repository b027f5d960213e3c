//! The library's part of the environment that this process began with.
//!
//! It is read when the library is loaded, because a program may clear its environment, or write a
//! title over it, before it asks for memory. Its children are to be paged all the same (exec.rs).

use crate::go;
use highwater_session::{
    FaultThreads, LOADER, Malloc, MapFiles, STATIC_PROGRAM, Settings, SystemCalls, come_as_signals,
};
use highwater_uffd::api::{Faults, Source};
use libc::c_char;
use rustix::process::{Resource, getrlimit};
use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

/// Prefix of the library's variables.
pub(crate) const PREFIX: &[u8] = b"HIGHWATER_";
/// The variable that lists libraries to preload.
pub(crate) const PRELOAD: &[u8] = b"LD_PRELOAD=";
struct Environment {
    settings: Result<Option<Settings>, String>,
    variables: Variables,
    /// Whether a variable makes Go's runtime free memory by MADV_FREE.
    go_frees_lazily: bool,
    static_program: Option<CString>,
}

/// The variables that make a child served, too.
pub(crate) struct Variables {
    /// The library's own, each as NAME=VALUE.
    pub(crate) ours: Vec<CString>,
    /// LD_PRELOAD with this library alone.
    pub(crate) preload: CString,
}

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// Copies the library's variables. A process that has raised its privileges has none: its
/// environment is that of a user with fewer.
///
/// # Safety
/// `entries` is an environment: strings, ended by a null pointer.
pub(crate) unsafe fn keep(mut entries: *const *const c_char) {
    if highwater_devices::is_privileged() {
        return;
    }
    let (mut ours, mut go_frees_lazily, mut static_program) = (Vec::new(), None, None);
    // SAFETY: as the caller says; the end has not been seen yet.
    while let Some(entry) = unsafe { entries.read().as_ref() } {
        // SAFETY: as the caller says.
        let entry = unsafe { CStr::from_ptr(entry) };
        if let Some(path) = value_of(entry, STATIC_PROGRAM.as_bytes()) {
            static_program = Some(path.to_owned());
        } else if entry.to_bytes().starts_with(PREFIX) {
            ours.push(entry.to_owned());
        }
        // As for Go's runtime, the first of several counts.
        go_frees_lazily = go_frees_lazily.or_else(|| frees_lazily(entry.to_bytes()));
        entries = entries.wrapping_add(1);
    }
    let path = own_path().unwrap_or_default();
    let mut environment = Environment::of(ours, path, go_frees_lazily == Some(true));
    environment.static_program = static_program.filter(|_| environment.is_loader());
    if environment.static_program.is_some() || go::is_running() {
        environment.serve_without_signals();
    }
    // Only the first call counts, and there is no other.
    let _ = ENVIRONMENT.set(environment);
}

impl Environment {
    /// The environment of a process with the variables `ours` and this library at `path`.
    fn of(ours: Vec<CString>, path: &[u8], go_frees_lazily: bool) -> Environment {
        let settings = Settings::from_vars(|name| value(&ours, name));
        let preload = if path.is_empty() { Vec::new() } else { [PRELOAD, path].concat() };
        let preload = CString::new(preload).unwrap_or_default();
        let variables = Variables { ours, preload };
        Environment { settings, variables, go_frees_lazily, static_program: None }
    }

    /// Whether the kernel has started this process to load a static program.
    fn is_loader(&self) -> bool {
        // SAFETY: the kernel's string, if there is one.
        let started = unsafe {
            let path = libc::getauxval(libc::AT_EXECFN) as *const c_char;
            path.as_ref().map(|path| CStr::from_ptr(path))
        };
        let loader = value(&self.variables.ours, LOADER);
        let is_it = |path: &CStr| {
            path == c"/proc/self/exe" || loader.is_some_and(|own| own.as_bytes() == path.to_bytes())
        };
        started.is_some_and(is_it)
    }

    /// Serves this process, but not its children, by handler threads and the kernel's own faults,
    /// if that is permitted: Go's runtime takes the signals.
    fn serve_without_signals(&mut self) {
        let Ok(Some(settings)) = &mut self.settings else { return };
        // Go reserves much memory, and this limit would count it.
        let is_limited = getrlimit(Resource::Data).current.is_some();
        let by_signals = come_as_signals(settings.faults, settings.system_calls);
        if by_signals && !is_limited && Source::find(Faults::All).probe().is_ok() {
            settings.faults = FaultThreads::Handlers;
            settings.system_calls = SystemCalls::Faults;
        }
    }
}

/// Whether GODEBUG, a variable of the environment as NAME=VALUE, makes Go's runtime free memory by
/// MADV_FREE; `None` for other variables. The last of several settings counts.
fn frees_lazily(variable: &[u8]) -> Option<bool> {
    let settings = variable.strip_prefix(b"GODEBUG=")?.split(|byte| *byte == b',');
    let mut values = settings.filter_map(|setting| setting.strip_prefix(b"madvdontneed="));
    Some(values.next_back() == Some(b"0"))
}

fn value(ours: &[CString], name: &str) -> Option<OsString> {
    let found = ours.iter().find_map(|entry| value_of(entry, name.as_bytes()))?;
    Some(OsString::from_vec(found.to_bytes().to_owned()))
}

/// The value of a variable, NAME=VALUE, if it has this name.
pub(crate) fn value_of<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a CStr> {
    let rest = entry.to_bytes_with_nul().strip_prefix(name)?.strip_prefix(b"=")?;
    CStr::from_bytes_with_nul(rest).ok()
}

/// The path of this library, as the dynamic linker knows it.
fn own_path() -> Option<&'static [u8]> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the call fills the structure, for which zeros are valid; the linker keeps the name.
    unsafe {
        let known = libc::dladdr(own_path as *const _, found.as_mut_ptr()) != 0;
        let name = found.assume_init().dli_fname;
        (known && !name.is_null()).then(|| CStr::from_ptr(name).to_bytes())
    }
}

/// The settings of the run; `None`: this process is not served.
pub(crate) fn settings() -> Result<Option<Settings>, String> {
    ENVIRONMENT.get().map_or(Ok(None), |environment| environment.settings.clone())
}

/// The settings, if they are present and valid.
fn sound() -> Option<&'static Settings> {
    ENVIRONMENT.get()?.settings.as_ref().ok()?.as_ref()
}

/// Whether Go's runtime, if it is in this program, frees memory by MADV_FREE.
pub(crate) fn go_frees_lazily() -> bool {
    ENVIRONMENT.get().is_some_and(|environment| environment.go_frees_lazily)
}

/// The program that runs static programs.
pub(crate) fn loader() -> Option<&'static CStr> {
    let ours = &ENVIRONMENT.get()?.variables.ours;
    ours.iter().find_map(|entry| value_of(entry, LOADER.as_bytes()))
}

/// The static program that this process is to run.
pub(crate) fn static_program() -> Option<&'static CStr> {
    ENVIRONMENT.get()?.static_program.as_deref()
}

/// Which mappings of files are served.
pub(crate) fn map_files() -> MapFiles {
    sound().map_or(MapFiles::Off, |settings| settings.map_files)
}

/// How system calls reach paged memory.
pub(crate) fn system_calls() -> SystemCalls {
    sound().map_or(SystemCalls::Faults, |settings| settings.system_calls)
}

/// Which blocks of malloc are served.
pub(crate) fn malloc() -> Malloc {
    sound().map_or(Malloc::All, |settings| settings.malloc)
}

/// The variables for children; `None`: this process is not served.
pub(crate) fn variables() -> Option<&'static Variables> {
    sound()?;
    ENVIRONMENT.get().map(|environment| &environment.variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_whole_names() {
        let ours = [c"HIGHWATER_MEMORYX=1", c"HIGHWATER_MEMORY=2=3"].map(CStr::to_owned);
        assert_eq!(value(&ours, "HIGHWATER_MEMORY"), Some("2=3".into()));
        assert_eq!(value(&ours, "HIGHWATER_SWAP"), None);
        assert_eq!(value(&[], "HIGHWATER_MEMORY"), None);
        assert_eq!(value(&[c"HIGHWATER_SWAP=".to_owned()], "HIGHWATER_SWAP"), Some("".into()));
    }

    #[test]
    fn the_last_setting_of_godebug_counts() {
        for (variable, expected) in [
            (&b"GODEBUG=madvdontneed=0"[..], Some(true)),
            (b"GODEBUG=gctrace=1,madvdontneed=0,xmadvdontneed=1", Some(true)),
            (b"GODEBUG=madvdontneed=0,madvdontneed=1", Some(false)),
            (b"GODEBUG=", Some(false)),
            (b"GODEBUGS=madvdontneed=0", None),
        ] {
            assert_eq!(frees_lazily(variable), expected, "{}", variable.escape_ascii());
        }
    }

    #[test]
    fn settings_are_whole_or_none_or_an_error() {
        let of = |vars: &[&CStr]| {
            let ours = vars.iter().map(|entry| CString::from(*entry)).collect();
            Environment::of(ours, b"/lib/hw.so", false)
        };
        assert_eq!(of(&[]).settings, Ok(None), "not to be served");
        let odd = of(&[c"HIGHWATER_MEMORY=much", c"HIGHWATER_SWAP=ram:1M"]).settings;
        assert!(odd.is_err_and(|error| error.lines().count() == 1));
    }

    #[test]
    fn children_get_the_variables_and_the_library() {
        let ours = vec![c"HIGHWATER_MEMORY=1".to_owned()];
        let found = Environment::of(ours.clone(), b"/lib/hw.so", false).variables;
        assert_eq!((found.ours, found.preload), (ours, c"LD_PRELOAD=/lib/hw.so".to_owned()));
        assert_eq!(Environment::of(Vec::new(), b"", false).variables.preload, c"".to_owned());
    }
}
