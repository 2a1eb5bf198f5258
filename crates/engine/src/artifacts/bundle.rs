//! Patroni's version, and where the file says that it comes from → the bytes of its bundle, checked.

use std::path::{Path, PathBuf};

use raftsman_core::spec::postgres::{Bundle, PatroniSource};
use raftsman_core::spec::{Archive, PatroniVersion};
use raftsman_core::versions::patroni::shipped;

use super::{ArtifactError, Artifacts, archive, download};

/// A bundle of Patroni, and the SHA-256 that it has.
#[derive(Debug, Clone)]
pub struct PatroniBundle {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// In hexadecimal digits.
    pub sha256: String,
}

impl Artifacts {
    /// Reads a version's bundle, downloaded where the file says so. Without a source it is the one that is shipped with
    /// raftsman, in the directory of the agent's program.
    pub async fn bundle(
        &self,
        source: Option<&PatroniSource>,
        version: PatroniVersion,
        base: &Path,
        agent: &Path,
    ) -> Result<PatroniBundle, ArtifactError> {
        let (place, sha256) = self.place(source, version, base, agent)?;
        if let Some(url) = url(source, version) {
            Box::pin(download::fetch(&url, &sha256, &self.cache_dir)).await?;
        }
        tokio::task::spawn_blocking(move || Ok(PatroniBundle { bytes: archive::read(&place, &sha256)?, sha256 }))
            .await?
    }

    /// Whether [`Self::bundle`] would find it, as far as that is known without a download.
    pub fn check_bundle(
        &self,
        source: Option<&PatroniSource>,
        version: PatroniVersion,
        base: &Path,
        agent: &Path,
    ) -> Result<(), ArtifactError> {
        let (place, sha256) = self.place(source, version, base, agent)?;
        if url(source, version).is_some() && !place.exists() {
            return Ok(());
        }
        archive::read(&place, &sha256).map(drop)
    }

    fn place(
        &self,
        source: Option<&PatroniSource>,
        version: PatroniVersion,
        base: &Path,
        agent: &Path,
    ) -> Result<(PathBuf, String), ArtifactError> {
        match source {
            None => {
                let place = agent.with_file_name(format!("patroni-{version}.tar"));
                let sha256 = shipped(version).ok_or(ArtifactError::NoBundle { version })?;
                match place.exists() {
                    true => Ok((place, sha256.to_owned())),
                    false => Err(ArtifactError::NotShipped { place, version }),
                }
            }
            Some(PatroniSource::Bundle(Bundle { file, sha256, .. })) => {
                let sha256 = sha256.of(version).ok_or(ArtifactError::NoBundle { version })?;
                let place = match file {
                    Some(file) => base.join(file.replace(Archive::VERSION, &version.to_string())),
                    None => download::place(sha256, &self.cache_dir),
                };
                Ok((place, sha256.trim().to_ascii_lowercase()))
            }
        }
    }
}

fn url(source: Option<&PatroniSource>, version: PatroniVersion) -> Option<String> {
    let PatroniSource::Bundle(Bundle { url, .. }) = source?;
    Some(url.as_ref()?.replace(Archive::VERSION, &version.to_string()))
}
