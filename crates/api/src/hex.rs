//! bytes → lower-case hexadecimal text and back; digests travel in this form.

use aws_lc_rs::digest;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Bytes as lower-case hexadecimal text.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0x0f)]));
    }
    text
}

/// The bytes that hexadecimal text stands for; `None` when it is not such text. Upper case is refused: a signature with
/// two spellings is a manifest that can be changed without notice.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte| DIGITS.iter().position(|digit| *digit == byte);
    text.as_bytes().chunks_exact(2).map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()).collect()
}

/// The SHA-256 of the bytes, as hexadecimal text.
pub fn sha256(bytes: &[u8]) -> String {
    encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let bytes = [0x00, 0x7f, 0xff, 0xa5];
        assert_eq!(encode(&bytes), "007fffa5");
        assert_eq!(decode("007fffa5").as_deref(), Some(bytes.as_slice()));
        assert_eq!(decode("007fFfa5"), None);
        assert_eq!(decode("0"), None);
        assert_eq!(decode("zz"), None);
        assert_eq!(decode("é"), None);
    }

    #[test]
    fn known_digest() {
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
