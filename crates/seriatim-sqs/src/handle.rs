//! Receipt handles: a receipt, signed with the schema's secret. So a stale one is told from a
//! forged one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use seriatim::receive::Receipt;
use sha2::Sha256;

/// How many bytes of the signature a handle has.
const SIGNATURE: usize = 16;

/// Signs and checks handles.
#[derive(Clone)]
pub(crate) struct Handles {
    secret: Vec<u8>,
}

impl Handles {
    pub(crate) fn new(secret: Vec<u8>) -> Self {
        Self { secret }
    }

    /// Returns the handle of a receipt of this queue.
    pub(crate) fn sign(&self, queue: &str, receipt: &Receipt) -> String {
        let mut bytes = receipt.to_string().into_bytes();
        let signature = self.mac(queue, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&signature[..SIGNATURE]);
        BASE64.encode(bytes)
    }

    /// Returns the receipt of a handle; `None` if it was not signed here, for this queue.
    pub(crate) fn check(&self, queue: &str, handle: &str) -> Option<Receipt> {
        let bytes = BASE64.decode(handle).ok()?;
        let (receipt, signature) = parts(&bytes)?;
        self.mac(queue, receipt).verify_truncated_left(signature).ok()?;
        read(receipt)
    }

    fn mac(&self, queue: &str, receipt: &[u8]) -> Hmac<Sha256> {
        let mut mac = hmac_of(&self.secret);
        mac.update(queue.as_bytes());
        mac.update(&[0]);
        mac.update(receipt);
        mac
    }
}

/// Returns the receipt that a handle names. `Handles::check` also checks its signature.
pub(crate) fn receipt_of(handle: &str) -> Option<Receipt> {
    read(parts(&BASE64.decode(handle).ok()?)?.0)
}

/// Returns the text of the receipt, and the signature.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)
}

fn read(receipt: &[u8]) -> Option<Receipt> {
    std::str::from_utf8(receipt).ok()?.parse().ok()
}

/// Returns an HMAC with this key.
pub(crate) fn hmac_of(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("a key of any length will do"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_signed_for_the_queue_is_a_handle() {
        let handles = Handles::new(vec![7; 32]);
        let receipt: Receipt = "17.3f0c1d9e-52a6-4a35-9c1b-0123456789ab".parse().unwrap();
        let handle = handles.sign("q", &receipt);
        assert_eq!(handles.check("q", &handle), Some(receipt));
        assert_eq!(receipt_of(&handle), Some(receipt));
        assert_eq!(handles.check("other", &handle), None);
        assert_eq!(Handles::new(vec![8; 32]).check("q", &handle), None);
        assert_eq!(handles.check("q", &handle[..handle.len() - 2]), None);
        let mut bytes = BASE64.decode(&handle).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(handles.check("q", &BASE64.encode(&bytes)), None, "byte {at}");
            bytes[at] ^= 1;
        }
        for odd in ["", "x", "====", "AAAA", "\u{e9}"] {
            assert_eq!((handles.check("q", odd), receipt_of(odd)), (None, None), "{odd}");
        }
    }
}
