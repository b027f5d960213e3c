//! Descriptions of clusters: one as Redis gives it, random ones, and damaged ones.

use super::*;
use highwater_units::Prng;

const GIVEN: &str = "\
07c37dfeb235213a872192d90877d0cd55635b91 127.0.0.1:30004@31004,host4 slave \
e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca 0 1426238317239 4 connected
67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 127.0.0.1:30002@31002,host2 master - 0 1426238316232 2 \
connected 5461-10922
292f8b365bb7edb5e285caf0b7e6ddc7265d2f4f ::1:30003@31003 master,fail? - 0 1426238318243 3 \
connected 10923-16382 16383 [93-<-292f8b365bb7edb5e285caf0b7e6ddc7265d2f4f]
6ec23923021cf3ffec47632106199cb7f496ce01 127.0.0.1:30005@31005 slave,fail \
67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 0 1426238316232 5 disconnected
824fe116063bc5fcf9f4ffd895bc17aee7731ac3 127.0.0.1:30006@31006 master - 0 1426238317741 6 connected
e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca :30001@31001 myself,master - 0 0 1 connected 0-5460
";

type Given<'a> = (Option<&'a str>, u16, &'a [(usize, usize)], &'a [u16], usize, u64);

fn address(host: Option<&str>, port: u16) -> Address {
    Address { host: host.map(|host| host.parse().unwrap()), port }
}

fn master((host, port, slots, replicas, all_replicas, epoch): Given<'_>) -> Master {
    let slots = slots.iter().map(|(first, last)| *first..=*last).collect();
    let replicas = replicas.iter().map(|port| address(Some("127.0.0.1"), *port)).collect();
    Master { address: address(host, port), slots, replicas, all_replicas, epoch }
}

#[test]
fn masters_with_slots_and_their_live_replicas_are_found() {
    let expected = [
        master((Some("127.0.0.1"), 30_002, &[(5461, 10_922)], &[], 1, 2)),
        master((Some("::1"), 30_003, &[(10_923, 16_382), (16_383, 16_383)], &[], 0, 3)),
        master((None, 30_001, &[(0, 5460)], &[30_004], 1, 1)),
    ];
    assert_eq!(masters(GIVEN), expected);
    assert_eq!(masters(""), []);
}

#[test]
fn damaged_descriptions_give_no_slots_beyond_the_last() {
    let mut random = Prng::new(41);
    for _ in 0..20_000 {
        let mut bytes = GIVEN.as_bytes().to_vec();
        for _ in 0..1 + random.below(9) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = b" \n:@,-[0189mx"[random.below(13) as usize];
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        let found = masters(&String::from_utf8(bytes).unwrap());
        assert!(found.iter().flat_map(|master| &master.slots).all(|it| *it.end() < HASH_SLOTS));
        assert!(found.iter().all(|master| master.address.port != 0));
    }
}
