//! a machine's disk and the way to others → figures that can be true, and reasons where there are none.

use std::fs;
use std::time::{Duration, Instant};

use raftsman_api::roles::Role;
use raftsman_api::v1;
use tonic::Code;

use crate::harness::{Fleet, Machine, own_address, stamp};

#[tokio::test]
async fn disk_and_network_are_measured() {
    let fleet = Fleet::new("f9");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let (other, _) = Machine::claimed(&fleet).await;
    let target = |name: &str, address: &str| v1::Target { name: name.to_owned(), address: address.to_owned() };
    let (there, absent) = (other.address.ip().to_string(), own_address().to_string());
    let targets = vec![target("there", &there), target("absent", &absent), target("odd", "etcd-9")];
    let request = v1::MeasureRequest { targets };
    let begun = Instant::now();
    let found = client.measure(stamp(request.clone())).await.unwrap().into_inner();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!((1..=100).contains(&found.samples), "{found:?}");
    assert!(0 < found.fsync_p50_us && found.fsync_p50_us <= found.fsync_p99_us, "{found:?}");
    assert!(u128::from(found.fsync_p99_us) <= begun.elapsed().as_micros(), "{found:?}");
    let [there, refused, odd] = found.round_trips.as_slice() else { panic!("{found:?}") };
    assert_eq!((there.name.as_str(), there.error.as_str()), ("there", ""));
    assert!(0 < there.median_us && u128::from(there.median_us) < begun.elapsed().as_micros(), "{there:?}");
    assert!(refused.median_us == 0 && refused.error.contains(&format!("{absent}:2378: cannot connect")), "{refused:?}");
    assert_eq!(odd.error, "`etcd-9` is not an address");
    let left = fs::read_dir(machine.root().etcd()).unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().contains("measure")).count(), 0);

    let mut reader = machine.client(&fleet, Role::Reader).await;
    assert_eq!(reader.measure(stamp(request)).await.unwrap_err().code(), Code::PermissionDenied);
}
