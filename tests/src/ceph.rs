//! Nothing → a Ceph with one disk and an S3 gateway, in a network with the test, gone when it ends.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use raftsman_backup::Place;
use raftsman_backup::place::{AccessKeys, S3};

use crate::files::write_private;
use crate::lab::Lab;
use crate::space::Space;

/// Where it is in a network of its own.
const ALONE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The ports of the gateway, with and without TLS.
const HTTPS_PORT: u16 = 7443;
const HTTP_PORT: u16 = 7480;
/// The bucket that there is.
pub const BUCKET: &str = "backups";
/// The access key with all permissions on it.
pub const KEY_ID: &str = "lab-access";
/// Its secret.
pub const SECRET: &str = "lab-secret-0123456789";

/// A running store. Drop removes all of it; a store in the network of another fixture ends with that fixture.
pub struct Ceph {
    _space: Option<Space>,
    address: Ipv4Addr,
    dir: tempfile::TempDir,
}

impl Ceph {
    /// Starts a store of its own, with room for so many bytes. The test's thread, and the threads and programs that it
    /// starts from now on, are in its network: a runtime must not exist yet. Needs root.
    pub fn up(bytes: u64) -> Self {
        let (dir, script) = prepare(ALONE, bytes);
        Self { _space: Some(Space::enter(&script)), address: ALONE, dir }
    }

    /// The same in the network of others, at an address that is there.
    pub fn beside(space: &Space, address: Ipv4Addr, bytes: u64) -> Self {
        let (dir, script) = prepare(address, bytes);
        space.run(&script);
        Self { _space: None, address, dir }
    }

    /// The gateway, over TLS, with a certificate of an authority of its own.
    pub fn https(&self) -> String {
        format!("https://{}:{HTTPS_PORT}", self.address)
    }

    /// Where it listens without TLS.
    pub fn http(&self) -> String {
        format!("{}:{HTTP_PORT}", self.address)
    }

    /// The file with the authority that the gateway's certificate is from.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("tls/ca.pem")
    }

    /// The bucket, over TLS.
    pub fn place(&self) -> Place {
        let ca_pem = std::fs::read_to_string(self.ca_file()).expect("its authority");
        Place::S3(S3 { endpoint: Some(self.https()), ca_pem: Some(ca_pem), ..plain() })
    }

    /// The bucket through something that listens here, without TLS.
    pub fn place_at(&self, address: &str) -> Place {
        Place::S3(S3 { endpoint: Some(format!("http://{address}")), ..plain() })
    }

    /// What stands under `store:` in a lab's file for the bucket, over TLS. The lab gets the secrets.
    pub fn store(&self, lab: &Lab) -> String {
        store(lab, &format!("{:?}, ca_cert: {:?}", self.https(), self.ca_file()))
    }

    /// The same through something that listens here, without TLS.
    pub fn store_at(&self, lab: &Lab, address: &str) -> String {
        store(lab, &format!("\"http://{address}\""))
    }
}

fn store(lab: &Lab, endpoint: &str) -> String {
    for (name, text) in [("s3-id", KEY_ID), ("s3-secret", SECRET)] {
        write_private(lab.path().join(name), text);
    }
    format!(
        "{{ s3: {{ bucket: {BUCKET}, region: default, endpoint: {endpoint}, \
         credentials: {{ id: {{ file: s3-id }}, secret: {{ file: s3-secret }} }} }} }}"
    )
}

/// An authority that has nothing to do with it.
pub fn foreign_authority() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.self_signed(&key).expect("a certificate").pem()
}

fn plain() -> S3 {
    S3 {
        bucket: BUCKET.to_owned(),
        region: "default".to_owned(),
        endpoint: None,
        ca_pem: None,
        virtual_hosted: false,
        keys: Some(AccessKeys { id: KEY_ID.to_owned(), secret: SECRET.to_owned(), session: None }),
    }
}

/// A directory with its configuration, and what starts it.
fn prepare(address: Ipv4Addr, bytes: u64) -> (tempfile::TempDir, String) {
    let dir = tempfile::Builder::new().prefix("raftsman-ceph-").tempdir().expect("a directory");
    std::fs::write(dir.path().join("ceph.conf"), configuration(dir.path(), address, bytes)).expect("a file");
    let script = format!("at={} address={address}\n{START}", dir.path().display());
    (dir, script)
}

fn configuration(at: &Path, address: Ipv4Addr, bytes: u64) -> String {
    let at = at.display();
    format!(
        "[global]\n\
         fsid = 5a1d8f3e-6f0c-4d0e-9c55-0c8f7f3f6a11\n\
         mon host = v1:{address}:16789\n\
         public addr = {address}\n\
         cluster addr = {address}\n\
         ms bind ipv6 = false\n\
         ms bind msgr2 = false\n\
         auth cluster required = none\n\
         auth service required = none\n\
         auth client required = none\n\
         keyring = {at}/keyring\n\
         run dir = {at}/run\n\
         admin socket = {at}/run/$name.asok\n\
         log file = {at}/log/$name.log\n\
         pid file =\n\
         osd pool default size = 1\n\
         osd pool default min size = 1\n\
         osd pool default pg num = 1\n\
         osd pool default pgp num = 1\n\
         osd pool default pg autoscale mode = off\n\
         osd crush chooseleaf type = 0\n\
         mon allow pool size one = true\n\
         mon warn on pool no redundancy = false\n\
         mon max pg per osd = 2000\n\
         mon data avail warn = 1\n\
         mon data avail crit = 1\n\
         rgw enable usage log = false\n\
         [mon]\n\
         mon data = {at}/mon/$id\n\
         mon cluster log file = {at}/log/cluster.log\n\
         [osd]\n\
         osd data = {at}/osd/$id\n\
         osd objectstore = bluestore\n\
         bluestore block size = {bytes}\n\
         osd class load list = *\n\
         osd class default list = *\n\
         osd op num shards = 1\n\
         osd memory target = 939524096\n\
         [client.rgw]\n\
         rgw data = {at}/rgw\n\
         rgw frontends = beast endpoint={address}:{HTTP_PORT} ssl_endpoint={address}:{HTTPS_PORT} ssl_certificate={at}/tls/both.pem\n\
         rgw thread pool size = 32\n"
    )
}

/// In the order in which each finds what it needs: monitor, disk, the gateway's first pool, gateway, user, bucket.
const START: &str = r#"
export CEPH_CONF=$at/ceph.conf
cd $at
patiently() {
  local end=$((SECONDS + 120))
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "not within two minutes: $*" >&2; tail -n 5 log/* >&2; exit 1; }
    sleep .1
  done
}
trap '[ $? = 0 ] || tail -n 20 log/made >&2' EXIT
monitor_answers() { timeout 5 ceph -s >/dev/null 2>&1; }
disk_is_up() { ceph osd stat 2>/dev/null | grep -q '1 up'; }
make_disk() { rm -rf osd/0 && mkdir osd/0 && ceph-osd -i 0 --mkfs --osd-uuid $disk; }
add_user() {
  radosgw-admin user info --uid=lab || radosgw-admin user create --uid=lab --display-name=lab \
    --access-key=lab-access --secret-key=lab-secret-0123456789
}
gateway_answers() { [ "$(curl -s -o /dev/null -w '%{http_code}' --noproxy '*' http://$address:7480/)" = 200 ]; }
mkdir -p log run mon/a osd/0 rgw tls
: >keyring
{
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3 -subj '/CN=the store' \
  -addext keyUsage=critical,keyCertSign,cRLSign -keyout tls/ca.key -out tls/ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=gateway' -keyout tls/key.pem -out tls/request.pem
echo "subjectAltName=IP:$address" >tls/names
openssl x509 -req -in tls/request.pem -CA tls/ca.pem -CAkey tls/ca.key -CAcreateserial -days 3 -out tls/gateway.pem \
  -extfile tls/names
cat tls/gateway.pem tls/key.pem >tls/both.pem
monmaptool --create --clobber --fsid $(sed -n 's/^fsid = //p' ceph.conf) --addv a "[v1:$address:16789]" monmap
ceph-mon --mkfs -i a --monmap monmap --keyring keyring
} >log/made 2>&1
ceph-mon -f -i a >log/mon.out 2>&1 &
patiently monitor_answers
disk=$(cat /proc/sys/kernel/random/uuid)
# A monitor that has just come up refuses a request now and then.
{
patiently ceph osd new $disk 0
patiently make_disk
patiently ceph osd crush add osd.0 1.0 root=default host=localhost
} >>log/made 2>&1
# It now and then asks the monitor before it knows it ('wrong fsid'), and ends.
while :; do ceph-osd -f -i 0 || sleep .2; done >log/osd.out 2>&1 &
patiently disk_is_up
patiently ceph osd pool create .rgw.root 1 1 >>log/made 2>&1
radosgw -f -n client.rgw >log/rgw.out 2>&1 &
patiently gateway_answers
patiently add_user >>log/made 2>&1
# Signed by hand in S3's oldest way: what curl of Debian 12 makes of the newer one is refused.
date=$(date -Ru)
signed=$(printf 'PUT\n\n\n%s\n/backups' "$date" | openssl dgst -sha1 -hmac lab-secret-0123456789 -binary | base64)
curl -sSf --noproxy '*' -H "Date: $date" -H "Authorization: AWS lab-access:$signed" -X PUT http://$address:7480/backups >&2
"#;
