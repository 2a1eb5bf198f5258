//! For tests: a cluster's repository and its key, and what is known of a backup of it before its first byte comes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult,
};
use raftsman_core::backup::{About, FullName, History, Layout};
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::{EtcdVersion, Name};

use crate::{Place, Repository, Signer, Store, Trust};

pub(crate) fn cluster() -> Name {
    Name::fixed("main")
}

pub(crate) fn layout() -> Layout {
    Layout::new("", &Name::fixed("shop"), &cluster())
}

/// The key of the cluster.
pub(crate) fn signer() -> Signer {
    Signer::new(&[7; 32]).unwrap()
}

/// A directory, and the cluster's own key trusted.
pub(crate) fn repository(dir: &std::path::Path) -> Repository {
    let store = Store::open(&Place::Directory(dir.to_owned())).unwrap();
    Repository { store, layout: layout(), cluster: cluster(), trust: Trust::in_key(signer().public()) }
}

/// Of a backup that was taken then, and holds nothing after `upto`.
pub(crate) fn about(taken: Timestamp, revision: i64, upto: i64) -> About {
    About {
        name: FullName::new(taken, revision),
        fleet: Name::fixed("shop"),
        fleet_id: "f".to_owned(),
        cluster: cluster(),
        cluster_id: ClusterId(7),
        member: Name::fixed("main-2"),
        version: EtcdVersion::default(),
        begun: taken,
        upto: Some(upto),
        histories: vec![History::first(ClusterId(7))],
        previous: None,
    }
}

/// The same repository, whose store removes none of these objects, and says this when it is asked to.
pub(crate) fn locked_store(repository: &Repository, kept: &[String], says: &'static str) -> Repository {
    let kept = kept.to_vec();
    let store = repository.store.clone().behind(|inner| Arc::new(Locked { inner, kept, says }));
    Repository { store, ..repository.clone() }
}

#[derive(Debug)]
struct Locked {
    inner: Arc<dyn ObjectStore>,
    kept: Vec<String>,
    says: &'static str,
}

impl fmt::Display for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which keeps {:?}", self.inner, self.kept)
    }
}

#[async_trait]
impl ObjectStore for Locked {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let (kept, says) = (self.kept.clone(), self.says);
        let locations = locations.map(move |location: object_store::Result<Path>| -> object_store::Result<Path> {
            let location = location?;
            let path = location.to_string();
            match kept.contains(&path) {
                true => Err(object_store::Error::PermissionDenied { path, source: says.into() }),
                false => Ok(location),
            }
        });
        self.inner.delete_stream(locations.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
