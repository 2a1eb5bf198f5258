//! A backup store's address and credentials → a connection to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig};
use serde::{Deserialize, Serialize};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may send nothing before the request is retried. A part of an upload gets there within that time.
const SILENCE: Duration = Duration::from_secs(30);
/// How often, and for how long, a failed request is retried.
const RETRIES: usize = 6;
const RETRYING: Duration = Duration::from_secs(120);

/// A backup store's address and credentials. They are sent to agents over mutual TLS, and stored nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// S3, or a compatible API.
    S3(S3),
    /// Google Cloud Storage.
    Gcs(Gcs),
    /// Azure Blob Storage.
    Azure(Azure),
    /// A directory of the machine.
    Directory(PathBuf),
}

/// A bucket of S3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3 {
    /// Its name.
    pub bucket: String,
    /// Where it is.
    pub region: String,
    /// The server; Amazon's own of the region when there is none.
    pub endpoint: Option<String>,
    /// The only authorities that the server's certificate may come from; the machine's when there are none.
    pub ca_pem: Option<String>,
    /// The bucket is in the server's name, not in the path.
    pub virtual_hosted: bool,
    /// The access key; the machine's own role where there is none.
    pub keys: Option<AccessKeys>,
}

/// An access key of S3.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKeys {
    /// Its id.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// The session token of temporary credentials.
    pub session: Option<String>,
}

/// A bucket of Google Cloud Storage.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gcs {
    /// Its name.
    pub bucket: String,
    /// A service account's key, as JSON; the machine's own account where there is none.
    pub service_account: Option<String>,
}

/// A container of Azure Blob Storage.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Azure {
    /// The storage account.
    pub account: String,
    /// The container.
    pub container: String,
    /// The account's key; the machine's own identity where there is none.
    pub access_key: Option<String>,
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKeys").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Gcs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gcs").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl fmt::Debug for Azure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, container, .. } = self;
        f.debug_struct("Azure").field("account", account).field("container", container).finish_non_exhaustive()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3(S3 { bucket, endpoint: Some(endpoint), .. }) => write!(f, "s3://{bucket} at {endpoint}"),
            Self::S3(S3 { bucket, region, .. }) => write!(f, "s3://{bucket} in {region}"),
            Self::Gcs(Gcs { bucket, .. }) => write!(f, "gs://{bucket}"),
            Self::Azure(Azure { account, container, .. }) => write!(f, "the container {container} of {account}"),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Place {
    /// A connection to it. Nothing is asked of it yet.
    pub(crate) fn connect(&self) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        Ok(match self {
            Self::S3(s3) => {
                let options = options(s3.ca_pem.as_deref())?;
                let plain = s3.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
                let mut builder = AmazonS3Builder::new()
                    .with_bucket_name(&s3.bucket)
                    .with_region(&s3.region)
                    .with_virtual_hosted_style_request(s3.virtual_hosted)
                    // TLS protects the payload, and all of it is read back: it need not be hashed for the signature.
                    .with_unsigned_payload(!plain)
                    .with_client_options(options.with_allow_http(plain))
                    .with_retry(retry());
                if let Some(endpoint) = &s3.endpoint {
                    builder = builder.with_endpoint(endpoint);
                }
                if let Some(AccessKeys { id, secret, session }) = &s3.keys {
                    builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                    if let Some(session) = session {
                        builder = builder.with_token(session);
                    }
                }
                Arc::new(builder.build()?)
            }
            Self::Gcs(gcs) => {
                let builder = GoogleCloudStorageBuilder::new().with_bucket_name(&gcs.bucket);
                let builder = builder.with_client_options(options(None)?).with_retry(retry());
                Arc::new(match &gcs.service_account {
                    Some(key) => builder.with_service_account_key(key).build()?,
                    None => builder.build()?,
                })
            }
            Self::Azure(azure) => {
                let builder = MicrosoftAzureBuilder::new().with_account(&azure.account);
                let builder = builder.with_container_name(&azure.container);
                let builder = builder.with_client_options(options(None)?).with_retry(retry());
                Arc::new(match &azure.access_key {
                    Some(key) => builder.with_access_key(key).build()?,
                    None => builder.build()?,
                })
            }
            // Flush files to the disk; remove empty directories of deleted backups.
            Self::Directory(path) => {
                Arc::new(LocalFileSystem::new_with_prefix(path)?.with_fsync(true).with_automatic_cleanup(true))
            }
        })
    }
}

fn options(ca_pem: Option<&str>) -> Result<ClientOptions, object_store::Error> {
    // No limit for a whole request: a download may take long, as long as bytes arrive.
    let mut options = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT);
    options = options.with_read_timeout(SILENCE);
    if let Some(pem) = ca_pem {
        for certificate in Certificate::from_pem_bundle(pem.as_bytes())? {
            options = options.with_root_certificate(certificate);
        }
        options = options.with_no_system_certificates(true);
    }
    Ok(options)
}

fn retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: RETRIES, retry_timeout: RETRYING }
}
