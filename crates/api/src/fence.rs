//! the lock's generation ↔ the metadata of a call; it keeps two operators from interleaving.

use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

/// The metadata key that bears the generation of the lock under which a change is made.
pub const GENERATION: &str = "raftsman-generation";

/// Marks a call as made under this generation of the lock.
pub fn stamp<T>(mut request: Request<T>, generation: u64) -> Request<T> {
    request.metadata_mut().insert(GENERATION, MetadataValue::from(generation));
    request
}

/// The generation that a call bears.
pub fn read<T>(request: &Request<T>) -> Result<u64, Status> {
    let value = request.metadata().get(GENERATION).ok_or_else(|| {
        Status::invalid_argument(format!("this call changes the machine and must bear the metadata {GENERATION}"))
    })?;
    value
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Status::invalid_argument(format!("the metadata {GENERATION} is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamped_then_read() {
        assert_eq!(read(&stamp(Request::new(()), u64::MAX)).ok(), Some(u64::MAX));
        assert!(read(&Request::new(())).is_err());
    }
}
