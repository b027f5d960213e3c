//! Specifications and their texts.

use super::*;
use highwater_units::Prng;

fn dir(path: &str, size: u64) -> Spec {
    Spec::Dir { path: path.into(), size: Bytes(size) }
}

fn redis(host: &str, port: u16) -> Spec {
    let server = Server::Tcp { host: host.to_owned(), port };
    Spec::Redis { servers: vec![server], size: Bytes(2 << 20) }
}

fn tls(name: &str, host: &str) -> Server {
    Server::Tls { name: name.to_owned(), host: host.to_owned(), port: 7 }
}

fn nbd_tcp(host: &str, export: &str) -> Spec {
    let server = Server::Tcp { host: host.to_owned(), port: 10809 };
    Spec::Nbd { server, export: export.to_owned(), size: Bytes(4 << 20) }
}

fn nbd_unix(path: &str, export: &str) -> Spec {
    let server = Server::Unix { path: path.into() };
    Spec::Nbd { server, export: export.to_owned(), size: Bytes(4 << 20) }
}

#[test]
fn kinds_and_sizes_are_read() {
    let file = Spec::File { path: "/a/b".into(), size: Bytes(3 << 29) };
    let zram = |algorithm| Spec::Zram { size: Bytes(64 << 20), algorithm };
    for (text, spec) in [
        ("ram:64M", Spec::Ram { size: Bytes(64 << 20) }),
        ("ram:1GiB", Spec::Ram { size: Bytes(1 << 30) }),
        ("ram:16T", Spec::Ram { size: Bytes(1 << 44) }),
        ("ram:1048577", Spec::Ram { size: Bytes(1 << 20) }),
        ("zram:64M", zram(Algorithm::Lz4)),
        ("zram:64M:lz4", zram(Algorithm::Lz4)),
        ("zram:64M:zstd", zram(Algorithm::Zstd)),
        ("file:/a/b:1.5G", file),
        ("dir:relative:1MB", dir("relative", 1 << 20)),
        (
            "tier:zram:64M+dir:/a+b:2M",
            Spec::Tier {
                fast: Box::new(zram(Algorithm::Lz4)),
                slow: Box::new(dir("/a+b", 2 << 20)),
            },
        ),
        ("dir:/with:colon:2m", dir("/with:colon", 2 << 20)),
        ("redis:cache.lan:6379:2M", redis("cache.lan", 6379)),
        ("redis:127.0.0.1:1:2M", redis("127.0.0.1", 1)),
        ("redis:[::1]:65535:2M", redis("::1", 65535)),
        (
            "rediss:a.lan:7:2M",
            Spec::Redis { servers: vec![tls("a.lan", "a.lan")], size: Bytes(2 << 20) },
        ),
        (
            "nbds:a.lan=[::1]:7/x=y:4M",
            Spec::Nbd {
                server: tls("a.lan", "::1"),
                export: "x=y".to_owned(),
                size: Bytes(4 << 20),
            },
        ),
        (
            "redis+unix:/run/a:b.sock:2M",
            Spec::Redis {
                servers: vec![Server::Unix { path: "/run/a:b.sock".into() }],
                size: Bytes(2 << 20),
            },
        ),
        (
            "tier:ram:2M+redis+unix:/x:2M",
            Spec::Tier {
                fast: Box::new(Spec::Ram { size: Bytes(2 << 20) }),
                slow: Box::new(Spec::Redis {
                    servers: vec![Server::Unix { path: "/x".into() }],
                    size: Bytes(2 << 20),
                }),
            },
        ),
        ("dir:/a b/c:2048k", dir("/a b/c", 2 << 20)),
        ("nbd:host:10809:4M", nbd_tcp("host", "")),
        ("nbd:host:10809/:4M", nbd_tcp("host", "")),
        ("nbd:host:10809/a/b:c:4M", nbd_tcp("host", "a/b:c")),
        ("nbd:[::1]:10809/x:4M", nbd_tcp("::1", "x")),
        ("nbd+unix:/run/a:b:4M", nbd_unix("/run/a:b", "")),
        ("nbd+unix:/run/a:b:/x/y:4M", nbd_unix("/run/a:b", "x/y")),
        ("nbd+unix:relative:4M", nbd_unix("relative", "")),
    ] {
        assert_eq!(Spec::parse(text), Ok(spec), "{text}");
    }
}

fn replicas(first: Spec, second: Spec) -> Spec {
    Spec::Replicate { first: Box::new(first), second: Box::new(second) }
}

#[test]
fn replicas_are_two_devices_in_one_way() {
    let (here, there) = (|| dir("/a+b", 4 << 20), || nbd_unix("/x", "y+z"));
    let unix =
        |path: &str, size| Spec::Redis { servers: vec![Server::Unix { path: path.into() }], size };
    let size = Bytes(2 << 20);
    for (text, spec) in [
        ("replicate:dir:/a+b:4M+nbd+unix:/x:/y+z:4M", replicas(here(), there())),
        ("replicate:nbd+unix:/x:/y+z:4M+dir:/a+b:4096K", replicas(there(), here())),
        ("replicate:redis:a:1:2M+redis:[::1]:1:2M", replicas(redis("a", 1), redis("::1", 1))),
        (
            "replicate:redis+unix:/x:2M+redis+unix:/y:2M",
            replicas(unix("/x", size), unix("/y", size)),
        ),
        (
            "tier:ram:2M+replicate:dir:/a+dir:/c:2M+file:/b:2M",
            Spec::Tier {
                fast: Box::new(Spec::Ram { size }),
                slow: Box::new(replicas(
                    dir("/a+dir:/c", 2 << 20),
                    Spec::File { path: "/b".into(), size },
                )),
            },
        ),
    ] {
        assert_eq!(Spec::parse(text), Ok(spec.clone()), "{text}");
        let slots = if text.starts_with("tier") { 1024 } else { spec.size().pages() };
        assert_eq!(u64::from(spec.pages()), slots, "{text}: they take room once");
    }
    assert_eq!(replicas(here(), there()).levels().len(), 1);
    for (text, part) in [
        ("replicate:", "second replica missing (A+B)"),
        ("replicate:dir:/a:1G", "second replica missing (A+B)"),
        ("replicate:redis+unix:/a:1G", "second replica missing (A+B)"),
        ("replicate:dir:/a+dir:/b", "first replica: size missing (PATH:SIZE)"),
        ("replicate:dir:/a:1G+", "second replica: kind missing"),
        ("replicate:+dir:/a:1G", "first replica: kind missing"),
        ("replicate:dir:/a+dir:/b:1G", "first replica: size missing (PATH:SIZE)"),
        ("replicate:dir:/a:1K+dir:/b:1G", "first replica: size 1K is under 1 MiB"),
        ("replicate:dir:/a:1G+tape:/b:1G", "second replica: unknown kind \"tape\""),
        ("replicate:dir:/a:1G+dir:/b:1G+dir:/c:1G", "a device too many (A+B)"),
        ("replicate:dir:/a:1G+dir:/b:2G", "the replicas differ in size (1G and 2G)"),
        ("replicate:dir:/a:1G+dir:/a:1024M", "both replicas are the same"),
        ("replicate:ram:1G+dir:/a:1G", "a replica is file:, dir:, redis: or nbd:"),
        ("replicate:dir:/a:1G+zram:1G", "a replica is file:, dir:, redis: or nbd:"),
        ("replicate:dir:/a:1G+tier:ram:1M+dir:/b:1023M", "a device too many"),
        ("replicate:dir:/a:1G+replicate:dir:/b:1G+dir:/c:1G", "a device too many"),
        ("tier:replicate:dir:/a:1G+dir:/b:1G", "fast level: second replica missing"),
        ("replicate:flaky:read=once+dir:/a:1G+dir:/b:1G", "for the tests of highwater-lab"),
        ("flaky:read=once+replicate:dir:/a:1G+dir:/b:1G", "injected into a level or replica"),
        ("replicate:redis:sesame@a:1:1G+dir:/a:1G", "HIGHWATER_REDIS_PASSWORD_FILE"),
    ] {
        assert_refused(text, part);
    }
}

#[test]
fn errors_are_one_line_and_say_what_is_wrong() {
    for (text, part) in [
        ("", "kind missing (there are ram:SIZE, zram:SIZE[:lz4|zstd], "),
        ("disk:/a:1G", "unknown kind \"disk\" (there are ram:SIZE, "),
        ("RAM:1G", "unknown kind \"RAM\""),
        ("zram:", "size missing"),
        ("zram:64M:", "unknown algorithm \"\" (there are lz4, zstd)"),
        ("zram:64M:gzip", "unknown algorithm \"gzip\" (there are lz4, zstd)"),
        ("zram:lz4:64M", "unknown algorithm \"64M\""),
        ("zram:64M:lz4:9", "unknown algorithm \"lz4:9\""),
        ("zram:1K", "under 1 MiB"),
        ("ram:64M:zstd", "bad size \"64M:zstd\""),
        ("tier:", "slow level missing (FAST+SLOW)"),
        ("tier:ram:1G", "slow level missing (FAST+SLOW)"),
        ("tier:ram:1G+", "slow level: kind missing"),
        ("tier:+dir:/a:1G", "fast level: kind missing"),
        ("tier:ram:1K+dir:/a:1G", "fast level: size 1K is under 1 MiB"),
        ("tier:zram:1G:gzip+dir:/a:1G", "fast level: unknown algorithm \"gzip\""),
        ("tier:dir:/a:1G+ram:1G", "the fast level is ram: or zram:"),
        ("tier:ram:1G+zram:1G", "the slow level is file:, dir:, redis:, nbd: or replicate:"),
        (
            "tier:ram:1G+tier:ram:1G+dir:/a:1G",
            "the slow level is file:, dir:, redis:, nbd: or replicate:",
        ),
        ("redis:", "size missing (HOST:PORT:SIZE)"),
        ("redis:host:1G", "port missing (HOST:PORT:SIZE)"),
        ("redis:host:port:1G", "port \"port\" is not a number from 1 to 65535"),
        ("redis:host:65536:1G", "port \"65536\" is not a number from 1 to 65535"),
        ("redis:host:0:1G", "port \"0\" is not a number from 1 to 65535"),
        ("redis::6379:1G", "host missing (HOST:PORT:SIZE)"),
        ("redis:::1:6379:1G", "an IPv6 address is in brackets: [::1]"),
        ("redis:a/b:6379:1G", "bad host \"a/b\""),
        ("redis:host:6379:", "size missing"),
        ("redis:host:6379:1G:x", "bad size \"x\""),
        ("redis:me:sesame@host:6379:1G", "HIGHWATER_REDIS_PASSWORD_FILE"),
        ("tier:ram:1G+redis:sesame@host:6379:1G", "HIGHWATER_REDIS_PASSWORD_FILE"),
        ("rediss:=a:7:1G", "bad name \"\""),
        ("rediss:a b:7:1G", "bad name \"a b\""),
        ("rediss:a.lan=:7:1G", "host missing (HOST:PORT:SIZE)"),
        ("rediss:me:sesame@host:6379:1G", "HIGHWATER_REDIS_PASSWORD_FILE"),
        ("redis+unix::1G", "path missing"),
        ("redis+unix:/run/x.sock", "size missing (PATH:SIZE)"),
        ("redis+unix:sesame@/run/x.sock:1G", "HIGHWATER_REDIS_PASSWORD_FILE"),
        ("tier:ram:1G+dir:/a", "slow level: size missing (PATH:SIZE)"),
        ("ram", "size missing"),
        ("ram:", "size missing"),
        ("dir:/a", "size missing (PATH:SIZE)"),
        ("file:/a:", "size missing"),
        ("dir::1G", "path missing"),
        ("ram:much", "bad size \"much\""),
        ("ram:-1G", "bad size \"-1G\""),
        ("dir:/a:b", "bad size \"b\""),
        ("ram:1023K", "size 1023K is under 1 MiB"),
        ("ram:0", "is under 1 MiB"),
        ("ram:17T", "size 17T is over 16 TiB"),
        ("ram:17592186044417", "is over 16 TiB"),
        ("ram:99999999999999999999T", "bad size"),
        ("dir:/a;b:1G", "may not contain ';'"),
        ("dir:/a\nb:x", "\\n"),
        ("flaky:read=once+ram:1G", "for the tests of highwater-lab"),
        ("tier:ram:1G+flaky:read=once+dir:/a:1G", "for the tests of highwater-lab"),
        ("flaky:read=once", "device missing (FAULTS+SPEC)"),
        ("flaky:fire=once+ram:1G", "unknown fault \"fire\""),
        ("flaky:read=once+tier:ram:1G+dir:/a:1G", "injected into a level or replica"),
        ("tier:flaky:read=once+ram:1G", "fast level: device missing"),
    ] {
        assert_refused(text, part);
    }
}

#[track_caller]
fn assert_refused(text: &str, part: &str) {
    let error = Spec::parse(text).unwrap_err();
    assert!(error.contains(part) && error.lines().count() == 1, "{text:?}: {error}");
    assert!(!error.contains("sesame"), "{error}");
}

#[test]
fn exports_that_cannot_be_named_are_refused() {
    for (text, part) in [
        ("nbd:", "size missing (HOST:PORT[/EXPORT]:SIZE)"),
        ("nbd:host/export:1G", "port missing"),
        ("nbd:host:10809/export", "port missing (HOST:PORT:SIZE)"),
        ("nbd:host:10809:export", "bad size \"export\""),
        ("nbd:host:10809:2M", "size 2M is under 2304K"),
        ("nbd+unix:/run/x.sock", "size missing (PATH:SIZE)"),
        ("nbd+unix::/export:1G", "path missing (PATH[:/EXPORT]:SIZE)"),
        ("nbd:host:10809/a;b:1G", "has ';'"),
    ] {
        assert_refused(text, part);
    }
}

#[test]
fn redis_servers_are_a_list() {
    let server = |host: &str, port| Server::Tcp { host: host.to_owned(), port };
    let servers = vec![server("a.lan", 1), server("::1", 2)];
    let spec = Spec::Redis { servers, size: Bytes(2 << 20) };
    assert_eq!(Spec::parse("redis:a.lan:1,[::1]:2:2M"), Ok(spec));
    for (text, part) in [
        ("redis:host:6379,:1G", "port missing (HOST:PORT:SIZE)"),
        ("redis:[::1:6379:1G", "']' is missing after ::1"),
        ("redis:::1]:6379:1G", "'[' is missing before ::1"),
        ("redis:host:6379,host:6379:1G", "server host:6379 is named twice"),
        ("nbd:host,other:10809:1G", "bad host \"host,other\""),
    ] {
        assert_refused(text, part);
    }
}

#[test]
fn random_specs_round_trip_through_text() {
    let mut random = Prng::new(1);
    for _ in 0..2_000 {
        let shift = random.below(24);
        let pages = (random.below(1 << 32) + 1) >> shift << random.below(shift + 1);
        let size = Bytes::of_pages(pages.max(256));
        let path = PathBuf::from(format!("/x:{}", random.below(9)));
        let spec = match random.below(15) {
            0 => Spec::Ram { size },
            1 => Spec::Zram { size, algorithm: Algorithm::Lz4 },
            2 => Spec::Zram { size, algorithm: Algorithm::Zstd },
            3 => Spec::File { path, size },
            4 => Spec::Dir { path, size },
            5 => flaky(&mut random, Spec::Ram { size }),
            6 => Spec::Redis { servers: vec![Server::Unix { path }], size },
            7 => redis(["localhost", "::1", "10.0.0.1"][random.below(3) as usize], 7),
            8 => Spec::Nbd {
                server: Server::Unix { path },
                export: ["", "a", "b/c:d"][random.below(3) as usize].to_owned(),
                size: size.max(NBD_SIZE_MIN),
            },
            9 => nbd_tcp(["::1", "a"][random.below(2) as usize], ["", "x/y"][size.0 as usize % 2]),
            10 => replicas(
                flaky(&mut random, Spec::Dir { path, size: size.max(NBD_SIZE_MIN) }),
                Spec::Nbd {
                    server: Server::Unix { path: "/y".into() },
                    export: "e+f".to_owned(),
                    size: size.max(NBD_SIZE_MIN),
                },
            ),
            11 => Spec::Tier {
                fast: Box::new(Spec::Ram { size }),
                slow: Box::new(flaky(&mut random, Spec::File { path, size: SIZE_MIN })),
            },
            12 => Spec::Redis {
                servers: ["a", "::1"][..1 + random.below(2) as usize]
                    .iter()
                    .map(|host| tls(host, "::1"))
                    .collect(),
                size,
            },
            13 => Spec::Nbd {
                server: tls("10.0.0.1", ["10.0.0.1", "b"][random.below(2) as usize]),
                export: ["", "a=b"][random.below(2) as usize].to_owned(),
                size: size.max(NBD_SIZE_MIN),
            },
            _ => Spec::Tier {
                fast: Box::new(Spec::Zram { size, algorithm: Algorithm::Zstd }),
                slow: Box::new(Spec::Dir { path, size: SIZE_MIN }),
            },
        };
        let text = spec.to_string();
        assert_eq!(Spec::parse(&text).is_err(), spec.is_flaky(), "{text}");
        assert_eq!(Spec::parse_with(&text, Injection::Allowed), Ok(spec));
    }
}

fn flaky(random: &mut Prng, device: Spec) -> Spec {
    let plan = format!("lost={},after={}", 1 + random.below(999), random.below(99));
    Spec::Flaky { faults: FaultPlan::parse(&plan).unwrap(), device: Box::new(device) }
}
