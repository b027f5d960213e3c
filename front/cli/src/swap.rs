//! The swap devices of a run, from `--swap` or by default. Each is opened once before the program
//! starts.

use crate::Refusal;
use highwater_devices::{
    Algorithm, Area, Device, Injection, Reason, RemoteOptions, Seal, Server, Spec, TlsFault,
};
use highwater_session::{SWAP_LEVELS_MAX, check_carried, default_swap, is_in_memory};
use highwater_units::Bytes;
use std::path::{Path, PathBuf, absolute};

/// The variable that lets a test give `flaky:` devices.
const ALLOWED: &str = "HIGHWATER_TEST_FLAKY_SWAP";

/// The devices given, or the default one: a file behind compressed memory of the size `compressed`.
/// Paths become absolute, because programs change directory; names of servers become addresses,
/// because the manager's threads cannot look names up.
pub(crate) fn devices(given: &[String], compressed: Option<Bytes>) -> Result<Vec<Area>, Refusal> {
    if given.is_empty() {
        let remedy = "name a directory on a disk (--swap dir:PATH:8G; in a container that of a \
            volume), or swap to compressed memory (--swap zram:1G)";
        let disk = whole(default_swap().map_err(|what| Refusal::new(what, remedy))?);
        return Ok(vec![carried(Area::new(behind_compressed(disk, compressed)), remedy)?]);
    }
    let areas: Result<Vec<Area>, _> = given.iter().map(|text| device(text, "--swap ")).collect();
    let areas = areas?;
    let count = levels(&areas).len();
    if count > SWAP_LEVELS_MAX {
        let what = format!("{count} swap devices (a tier counts as two) are too many");
        return Err(Refusal::new(what, format!("give at most {SWAP_LEVELS_MAX}")));
    }
    Ok(areas)
}

/// The device `slow` behind compressed memory of the size `compressed`; `slow` alone if it is
/// `None`.
fn behind_compressed(slow: Spec, compressed: Option<Bytes>) -> Spec {
    match compressed {
        None => slow,
        Some(size) => {
            let fast = Box::new(Spec::Zram { size, algorithm: Algorithm::default() });
            Spec::Tier { fast, slow: Box::new(slow) }
        }
    }
}

/// The first directory of swap files that is itself in memory, where swapping saves none.
pub(crate) fn in_memory(areas: &[Area]) -> Option<&Path> {
    let levels = areas.iter().flat_map(|area| area.spec.levels());
    let devices = levels.flat_map(|level| match level {
        Spec::Replicate { first, second } => vec![&**first, &**second],
        device => vec![device],
    });
    let dirs = devices.filter_map(|device| match device {
        Spec::Dir { path, .. } => Some(path.as_path()),
        Spec::File { path, .. } => path.parent(),
        _ => None,
    });
    dirs.into_iter().find(|dir| is_in_memory(dir))
}

/// The sizes of all devices in pages, with the two levels of a tier as separate sizes.
fn levels(areas: &[Area]) -> Vec<u64> {
    let levels = areas.iter().flat_map(|area| area.spec.levels());
    levels.map(|level| level.size().pages()).collect()
}

/// The device that `text`, the value of `option`, specifies.
pub(crate) fn device(text: &str, option: &str) -> Result<Area, Refusal> {
    let remedy_of =
        |what| Refusal::new(what, format!("write for example {option}{}", example(text)));
    let area = Area::parse_with(text, injection()).map_err(remedy_of)?;
    let spec = area.spec.resolved();
    let spec = spec.map_err(|what| Refusal::new(what, remedy(&Reason::UnknownHost)))?;
    carried(Area { spec: whole(spec), ..area }, "name another path or server")
}

/// Refuses a device that the program's processes cannot read from their environment: now that paths
/// are absolute and names are addresses, a path may be unfit, or two devices may be one.
fn carried(area: Area, remedy: &str) -> Result<Area, Refusal> {
    check_carried(&area).map_err(|what| Refusal::new(what, remedy))?;
    Ok(area)
}

/// An example for a refusal: a device of the kind that the wrong text names, with a correct form of
/// the option in it.
fn example(text: &str) -> String {
    let device = match text.split_once(':').map_or(text, |(kind, _)| kind) {
        "ram" => "ram:1G",
        "zram" => "zram:1G:lz4",
        "file" => "file:/var/tmp/swap:8G",
        "redis" => "redis:127.0.0.1:6379:8G",
        "redis+unix" => "redis+unix:/run/redis/redis.sock:8G",
        "rediss" => "rediss:cache.example.com:6379:8G",
        "nbd" => "nbd:127.0.0.1:10809:8G",
        "nbds" => "nbds:store.example.com:10809:8G",
        "nbd+unix" => "nbd+unix:/run/nbd.sock:8G",
        "replicate" => "replicate:nbd:127.0.0.1:10809:8G+dir:/var/tmp:8G",
        "tier" => "tier:zram:1G+dir:/var/tmp:8G",
        _ => "dir:/var/tmp:8G",
    };
    let options = [(",priority=", ",priority=5"), (",rotational=", ",rotational=0")];
    let option = options.iter().find(|(given, _)| text.contains(given));
    format!("{device}{}", option.map_or("", |(_, right)| right))
}

/// Whether this is a test of what happens when devices fail.
fn injection() -> Injection {
    match std::env::var_os(ALLOWED) {
        Some(_) => Injection::Allowed,
        None => Injection::Refused,
    }
}

fn full(path: PathBuf) -> PathBuf {
    absolute(&path).unwrap_or(path)
}

fn whole_server(server: Server) -> Server {
    match server {
        Server::Unix { path } => Server::Unix { path: full(path) },
        listens @ (Server::Tcp { .. } | Server::Tls { .. }) => listens,
    }
}

/// Makes paths absolute.
fn whole(spec: Spec) -> Spec {
    match spec {
        memory @ (Spec::Ram { .. } | Spec::Zram { .. }) => memory,
        Spec::Redis { servers, size } => {
            Spec::Redis { servers: servers.into_iter().map(whole_server).collect(), size }
        }
        Spec::Nbd { server, export, size } => {
            Spec::Nbd { server: whole_server(server), export, size }
        }
        Spec::File { path, size } => Spec::File { path: full(path), size },
        Spec::Dir { path, size } => Spec::Dir { path: full(path), size },
        Spec::Replicate { first, second } => {
            Spec::Replicate { first: Box::new(whole(*first)), second: Box::new(whole(*second)) }
        }
        Spec::Tier { fast, slow } => Spec::Tier { fast, slow: Box::new(whole(*slow)) },
        Spec::Flaky { faults, device } => Spec::Flaky { faults, device: Box::new(whole(*device)) },
    }
}

/// Whether any of the devices has a file, or is on a server.
pub(crate) fn leave_memory(areas: &[Area]) -> bool {
    let mut levels = areas.iter().flat_map(|area| area.spec.levels());
    levels.any(|level| !matches!(level, Spec::Ram { .. } | Spec::Zram { .. }))
}

/// The device, if it is the only one, has one level, and is not in memory.
pub(crate) fn only_slow(areas: &[Area]) -> Option<&Area> {
    match areas {
        [area] if leave_memory(areas) && area.spec.levels().len() == 1 => Some(area),
        _ => None,
    }
}

/// The options for reaching servers, from the environment.
pub(crate) fn remote() -> Result<RemoteOptions, Refusal> {
    let options = RemoteOptions::from_env().map_err(|what| Refusal::new(what, "correct it"))?;
    // The program may change its directory.
    Ok(options.with_paths(full))
}

/// Opens a device as the program will.
pub(crate) fn open(area: &Area, seal: Seal) -> Result<Box<dyn Device>, Refusal> {
    let opened = area.open_wrapped(seal, &remote()?, &|device| device);
    opened.map_err(|e| Refusal::new(e.to_string(), remedy(&e.reason)))
}

/// Opens all devices as the program will, and closes them. Each is open until the last one is: two
/// may use one export of a server.
pub(crate) fn try_open(areas: &[Area], seal: Seal) -> Result<(), Refusal> {
    let opened: Result<Vec<_>, _> = areas.iter().map(|area| open(area, seal)).collect();
    opened.map(drop)
}

fn remedy(reason: &Reason) -> &'static str {
    match reason {
        Reason::Missing => "create the directory, or name another one",
        Reason::TakesNoFiles => "name a directory on a disk",
        Reason::NotADirectory => "name a directory",
        Reason::Exists => "name a file that does not exist",
        Reason::Permission | Reason::ReadOnlyFileSystem => "name a directory you may write to",
        Reason::LittleSpace { .. } | Reason::Full => {
            "give a smaller SIZE, free some space, or name another directory"
        }
        Reason::FileSizeLimit { .. } => "'ulimit -f unlimited', or give a smaller SIZE",
        Reason::FileTooLarge => "give a smaller SIZE, or name a directory on another file system",
        Reason::NoMemory => "give a smaller SIZE",
        Reason::Unreachable { .. } => "start the server, or correct its address",
        Reason::UnknownHost => "correct the name, or give an address",
        Reason::HangsUp => "correct the port, or the path; with TLS it is rediss: or nbds:",
        Reason::NotRedis => "correct the port, or the path",
        Reason::NotNbd => "correct the port, or the path",
        Reason::OldNbd => "serve the export by a newer server (nbdkit, qemu-nbd, nbd-server)",
        Reason::NoExport => "correct the export's name, after the port and '/'",
        Reason::SmallExport { .. } => "give a smaller SIZE",
        Reason::ReadOnlyExport => "allow the server to write it, or name another export",
        Reason::WantsTls => "name it nbds:HOST:PORT, or serve the socket without TLS",
        Reason::Tls(fault) => tls_remedy(*fault),
        Reason::TlsFile { .. } => "correct HIGHWATER_TLS_CA, HIGHWATER_TLS_CERT, HIGHWATER_TLS_KEY",
        Reason::BlockSize => "serve the export with blocks of 4 KiB or less",
        Reason::HoldsData => "name an empty export, or overwrite its first 128 KiB with zeros",
        Reason::InUse => "name another export: each device of each session needs its own",
        Reason::Denied => {
            "set or correct HIGHWATER_REDIS_PASSWORD or HIGHWATER_REDIS_PASSWORD_FILE, and \
             HIGHWATER_REDIS_USER"
        }
        Reason::Evicts => "set its maxmemory-policy to noeviction",
        Reason::ServerFull => "raise its limit (maxmemory), or free some of it",
        Reason::Unwilling => "try again; docs/remote.md says what it must allow",
        Reason::Unsealed => "leave out --seal off",
        Reason::BadVariable | Reason::PasswordFile { .. } => "correct it",
        Reason::Failed { .. } => "name a directory on another file system",
    }
}

fn tls_remedy(fault: TlsFault) -> &'static str {
    match fault {
        TlsFault::NotSpoken => {
            "correct the port, or leave TLS out: redis: for rediss:, nbd: for nbds:"
        }
        TlsFault::UnknownIssuer => {
            "name the file of the authority's certificate in HIGHWATER_TLS_CA"
        }
        TlsFault::OtherName => "name the server as its certificate does: HOST, or NAME=HOST",
        TlsFault::Expired | TlsFault::BadCertificate => "renew the server's certificate",
        TlsFault::ClientRefused => {
            "name files that it accepts in HIGHWATER_TLS_CERT and HIGHWATER_TLS_KEY"
        }
        TlsFault::Failed => "let the server use TLS 1.2 or 1.3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_is_refused_with_the_known_ones() {
        let refusal = devices(&["tape:1G".to_owned()], None).unwrap_err();
        assert!(refusal.what().contains("tape") && refusal.what().contains("dir:PATH:SIZE"));
    }

    #[test]
    fn a_wrong_device_is_refused_with_a_right_one_of_its_kind() {
        let kinds = ["ram", "zram", "file", "dir", "redis", "redis+unix", "nbd", "nbd+unix"];
        for kind in kinds.into_iter().chain(["replicate", "tier"]) {
            for option in ["", ",priority=99999", ",rotational=2"] {
                let example = example(&format!("{kind}:much{option}"));
                let area = Area::parse(&example).unwrap();
                assert!(example.starts_with(&format!("{kind}:")), "{example}");
                let options = (area.priority.is_some(), area.medium.is_some());
                assert_eq!(options, (option.contains("prio"), option.contains("rota")));
            }
        }
    }

    #[test]
    fn tiers_have_two_levels_and_all_have_sixteen() {
        let tier = "tier:ram:1M+dir:somewhere:2M";
        let given = ["zram:3M".to_owned(), tier.to_owned()];
        assert_eq!(levels(&devices(&given, None).unwrap()), [768, 256, 512]);
        assert_eq!(devices(&[tier; 8].map(str::to_owned), None).unwrap().len(), 8);
        let refusal = devices(&[tier; 9].map(str::to_owned), None).unwrap_err();
        assert_eq!(refusal.what(), "18 swap devices (a tier counts as two) are too many");
    }

    #[test]
    fn the_default_file_is_behind_compressed_memory_that_counts() {
        let size = Bytes(64 << 20);
        let text = |compressed| devices(&[], compressed).unwrap()[0].spec.to_string();
        let (alone, behind) = (text(None), text(Some(size)));
        assert!(alone.starts_with("dir:"), "{alone}");
        assert_eq!(behind, format!("tier:zram:64M:lz4+{alone}"));
        assert_eq!(Area::parse(&behind).unwrap().spec.to_string(), behind);
    }

    #[test]
    fn files_and_servers_are_found_in_tiers_as_well() {
        for (text, expected) in [
            ("zram:3M", false),
            ("dir:/x:1M", true),
            ("tier:ram:1M+file:/x:1M", true),
            ("tier:ram:1M+redis:127.0.0.1:1:1M", true),
            ("nbd:127.0.0.1:1/a:4M", true),
        ] {
            assert_eq!(
                leave_memory(&devices(&[text.to_owned()], None).unwrap()),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn compressed_memory_can_come_before_a_single_device_that_leaves_memory() {
        for (texts, expected) in [
            (&["zram:3M"][..], None),
            (&["dir:/x:1M"], Some("dir:/x:1M")),
            (&["nbd:127.0.0.1:1/a:4M,priority=2"], Some("nbd:127.0.0.1:1/a:4M,priority=2")),
            (&["dir:/x:1M", "dir:/y:1M"], None),
            (&["tier:ram:1M+dir:/x:1M"], None),
        ] {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            let areas = devices(&texts, None).unwrap();
            let found = only_slow(&areas).map(Area::to_string);
            assert_eq!(found.as_deref(), expected, "{texts:?}");
        }
    }

    #[test]
    fn paths_become_absolute() {
        let found = devices(&["dir:somewhere:1M".to_owned()], None).unwrap();
        let expected = std::env::current_dir().unwrap().join("somewhere");
        assert!(matches!(&found[0].spec, Spec::Dir { path, .. } if *path == expected));
        let found = devices(&["tier:ram:1M+dir:somewhere:1M".to_owned()], None).unwrap();
        let Spec::Tier { slow, .. } = &found[0].spec else { panic!("{found:?}") };
        assert!(matches!(&**slow, Spec::Dir { path, .. } if *path == expected));
    }

    #[test]
    fn a_device_that_the_program_would_not_get_is_refused() {
        for text in
            ["replicate:dir:x:1M+dir:./x:1M", "replicate:redis:localhost:7:1M+redis:127.0.0.1:7:1M"]
        {
            let refusal = devices(&[text.to_owned()], None).unwrap_err();
            assert_eq!(refusal.remedy(), "name another path or server", "{text}: {refusal}");
        }
    }

    #[test]
    fn what_cannot_be_opened_says_what_to_do() {
        for text in ["dir:/nonexistent:1M", "tier:zram:1M+dir:/nonexistent:1M"] {
            let refusal = try_open(&[Area::parse(text).unwrap()], Seal::On).unwrap_err();
            assert!(refusal.remedy().contains("create the directory"), "{refusal}");
        }
        let memory = ["ram:1M", "zram:1M", "zram:1M:zstd"].map(|text| Area::parse(text).unwrap());
        assert_eq!(try_open(&memory, Seal::On), Ok(()));
    }
}
