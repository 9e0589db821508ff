//! Signature Version 4, checked: in the header `Authorization`, or in a presigned address.

use std::fmt::Write as _;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use hmac::Mac;
use hyper::http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::digest::hex;
use crate::error::{Code, SqsError};
use crate::handle::hmac_of;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// How far a client's clock may be off.
const SKEW: TimeDelta = TimeDelta::minutes(15);
/// The longest that a presigned address is good for, in seconds: a week.
const EXPIRES_LIMIT: i64 = 7 * 24 * 60 * 60;
/// All but these is written with a percent sign.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &VALUE.remove(b'/');

/// The signature of a request, not checked yet.
#[derive(Debug, PartialEq)]
pub(crate) struct Signature {
    pub(super) access_key: String,
    pub(super) region: String,
    /// `date/region/service/aws4_request`.
    scope: String,
    signed_headers: Vec<String>,
    /// In hexadecimal.
    digits: String,
    time: String,
    /// For a presigned address: the number of seconds that it is good.
    expires: Option<i64>,
}

impl Signature {
    /// Reads the signature from a request's header or its presigned address.
    pub(super) fn read(parts: &Parts) -> Result<Self, SqsError> {
        if let Some(header) = parts.headers.get("authorization") {
            let header = header.to_str().map_err(|_| incomplete("Authorization is no text."))?;
            return Self::of_header(parts, header);
        }
        let query = parts.uri.query().unwrap_or("");
        let of = |name: &str| {
            let mut fields = form_urlencoded::parse(query.as_bytes());
            fields.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
        };
        if of("X-Amz-Algorithm").is_none() {
            let message = "Request is missing Authentication Token";
            return Err(SqsError::new(Code::MissingAuthentication, message));
        }
        let needed =
            |name: &str| of(name).ok_or_else(|| incomplete(&format!("{name} is missing.")));
        let expires = needed("X-Amz-Expires")?.parse().ok();
        let expires = expires.filter(|seconds| (1..=EXPIRES_LIMIT).contains(seconds));
        let expires = expires.ok_or_else(|| incomplete("X-Amz-Expires must be 1 to 604800."))?;
        let algorithm = needed("X-Amz-Algorithm")?;
        Self::new(
            &algorithm,
            &needed("X-Amz-Credential")?,
            &needed("X-Amz-SignedHeaders")?,
            needed("X-Amz-Signature")?,
            needed("X-Amz-Date")?,
            Some(expires),
        )
    }

    fn of_header(parts: &Parts, header: &str) -> Result<Self, SqsError> {
        let (algorithm, fields) = header.split_once(' ').unwrap_or((header, ""));
        let of = |name: &str| {
            let mut fields = fields.split(',').map(str::trim);
            fields
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
                .ok_or_else(|| incomplete(&format!("Authorization has no {name}.")))
        };
        let time = parts.headers.get("x-amz-date").and_then(|time| time.to_str().ok());
        let time = time.ok_or_else(|| incomplete("The header X-Amz-Date is missing."))?;
        let digits = of("Signature")?.to_owned();
        Self::new(algorithm, of("Credential")?, of("SignedHeaders")?, digits, time.to_owned(), None)
    }

    fn new(
        algorithm: &str,
        credential: &str,
        signed_headers: &str,
        digits: String,
        time: String,
        expires: Option<i64>,
    ) -> Result<Self, SqsError> {
        if algorithm != ALGORITHM {
            return Err(incomplete(&format!("The only algorithm is {ALGORITHM}.")));
        }
        // An access key may have a slash in it.
        let mut of_scope = credential.rsplitn(5, '/');
        let scope = [of_scope.next(), of_scope.next(), of_scope.next(), of_scope.next()];
        let ([Some("aws4_request"), Some("sqs"), Some(region), Some(date)], Some(access_key)) =
            (scope, of_scope.next())
        else {
            return Err(incomplete("The credential is not KEY/DATE/REGION/sqs/aws4_request."));
        };
        // It becomes part of ARNs.
        if region.is_empty() || !region.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
            return Err(incomplete("The region of the credential has odd characters."));
        }
        if time.get(..8) != Some(date) {
            return Err(incomplete("The credential is of another day than the request."));
        }
        Ok(Self {
            access_key: access_key.to_owned(),
            region: region.to_owned(),
            scope: format!("{date}/{region}/sqs/aws4_request"),
            signed_headers: signed_headers.split(';').map(str::to_owned).collect(),
            digits,
            time,
            expires,
        })
    }

    /// Checks the signature with the key's secret, and the time by this clock.
    pub(super) fn verify(
        &self,
        parts: &Parts,
        body: &[u8],
        secret: &str,
        now: DateTime<Utc>,
    ) -> Result<(), SqsError> {
        let canonical = self.canonical_request(parts, body)?;
        let to_sign = format!(
            "{ALGORITHM}\n{}\n{}\n{}",
            self.time,
            self.scope,
            hex(&Sha256::digest(canonical))
        );
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in self.scope.split('/') {
            key = hmac_of(&key).chain_update(part).finalize().into_bytes().to_vec();
        }
        let given = bytes_of_hex(&self.digits).unwrap_or_default();
        // In constant time.
        if hmac_of(&key).chain_update(to_sign).verify_slice(&given).is_err() {
            let message = "The request signature we calculated does not match the signature you \
                provided. Check your AWS Secret Access Key and signing method. Consult the service \
                documentation for details.";
            return Err(SqsError::new(Code::SignatureDoesNotMatch, message));
        }
        self.check_time(now)
    }

    pub(super) fn check_time(&self, now: DateTime<Utc>) -> Result<(), SqsError> {
        let time = NaiveDateTime::parse_from_str(&self.time, "%Y%m%dT%H%M%SZ")
            .map_err(|_| incomplete("The date of the request is not like 20260102T030405Z."))?
            .and_utc();
        let good_for = self.expires.map_or(SKEW, TimeDelta::seconds);
        if now > time + good_for || now < time - SKEW {
            let now = now.format("%Y%m%dT%H%M%SZ");
            let message = format!(
                "Signature not valid now: it was made at {}, and it is {now} by the server's clock.",
                self.time
            );
            return Err(SqsError::new(Code::SignatureDoesNotMatch, message));
        }
        Ok(())
    }

    /// The request as the signer wrote it down.
    fn canonical_request(&self, parts: &Parts, body: &[u8]) -> Result<String, SqsError> {
        // The headers that name the operation, the host, the time and the body's hash must be
        // signed.
        for name in ["host", "x-amz-date", "x-amz-target", "x-amz-content-sha256"] {
            let is_there = name == "host" || parts.headers.contains_key(name);
            if is_there && !self.signed_headers.iter().any(|signed| signed == name) {
                return Err(incomplete(&format!("The header {name} must be signed.")));
            }
        }
        let mut headers = String::new();
        for name in &self.signed_headers {
            let values = parts.headers.get_all(name).iter().map(|value| {
                let value = value.to_str().unwrap_or_default();
                value.split_whitespace().collect::<Vec<_>>().join(" ")
            });
            let values: Vec<_> = values.collect();
            _ = writeln!(headers, "{name}:{}", values.join(","));
        }
        Ok(format!(
            "{}\n{}\n{}\n{headers}\n{}\n{}",
            parts.method,
            utf8_percent_encode(parts.uri.path(), PATH),
            canonical_query(parts.uri.query().unwrap_or("")),
            self.signed_headers.join(";"),
            payload_hash(parts, body)?,
        ))
    }
}

fn incomplete(message: &str) -> SqsError {
    SqsError::new(Code::IncompleteSignature, message)
}

/// The fields of an address by name, without the signature.
fn canonical_query(query: &str) -> String {
    let encode = |text: &str| utf8_percent_encode(text, VALUE).to_string();
    let mut fields: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name != "X-Amz-Signature")
        .map(|(name, value)| (encode(&name), encode(&value)))
        .collect();
    fields.sort();
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    fields.join("&")
}

/// The hash of the body, or the word that says that the body is not signed.
fn payload_hash(parts: &Parts, body: &[u8]) -> Result<String, SqsError> {
    let hash = hex(&Sha256::digest(body));
    match parts.headers.get("x-amz-content-sha256").map(hyper::header::HeaderValue::as_bytes) {
        Some(given) if given == UNSIGNED.as_bytes() => Ok(UNSIGNED.to_owned()),
        Some(given) if given != hash.as_bytes() => {
            let message = "The body is not what the header X-Amz-Content-Sha256 says.";
            Err(SqsError::new(Code::SignatureDoesNotMatch, message))
        }
        _ => Ok(hash),
    }
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use aws_credential_types::Credentials;
    use aws_sigv4::http_request::{
        PayloadChecksumKind, SignableBody, SignableRequest, SignatureLocation, SigningSettings,
        sign,
    };
    use aws_sigv4::sign::v4::SigningParams;
    use hyper::{Method, Request};

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    const BODY: &[u8] = br#"{"QueueUrl":"q"}"#;

    fn settings() -> SigningSettings {
        SigningSettings::default()
    }

    fn presigned() -> SigningSettings {
        let mut settings = settings();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(Duration::from_hours(1));
        settings
    }

    /// A request that the signer of AWS has signed now.
    fn signed(
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
        settings: SigningSettings,
    ) -> Parts {
        let address = format!("http://localhost:9324{path}");
        let mut request = Request::builder()
            .method(method)
            .uri(&address)
            .header("host", "localhost:9324")
            .header("x-amz-target", "AmazonSQS.SendMessage")
            .header("x-odd", "  a   b ")
            .body(())
            .unwrap();
        let identity = Credentials::new("KEY/WITH/SLASHES", SECRET, None, None, "test").into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region("eu-west-1")
            .name("sqs")
            .time(SystemTime::now())
            .settings(settings)
            .build()
            .unwrap()
            .into();
        let headers =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        let body = body.map_or(SignableBody::UnsignedPayload, SignableBody::Bytes);
        let signable = SignableRequest::new(method.as_str(), &address, headers, body).unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        instructions.apply_to_request_http1x(&mut request);
        request.into_parts().0
    }

    fn verify(parts: &Parts, body: &[u8]) -> Result<(), SqsError> {
        verify_at(parts, body, SECRET, Utc::now())
    }

    fn verify_at(
        parts: &Parts,
        body: &[u8],
        secret: &str,
        now: DateTime<Utc>,
    ) -> Result<(), SqsError> {
        Signature::read(parts)?.verify(parts, body, secret, now)
    }

    #[test]
    fn what_the_signer_of_aws_signs_is_accepted() {
        for path in
            ["/", "/000000000000/q.fifo", "/?Action=A&x=a%20b+c%2B%C3%A9&y=&x=~-_.", "/a%20b"]
        {
            let parts = signed(&Method::POST, path, Some(BODY), settings());
            let signature = Signature::read(&parts).unwrap();
            assert_eq!(signature.access_key, "KEY/WITH/SLASHES");
            assert_eq!(signature.region, "eu-west-1");
            assert_eq!(verify(&parts, BODY), Ok(()), "{path}");
            let parts = signed(&Method::GET, path, Some(b""), presigned());
            assert_eq!(verify(&parts, b""), Ok(()), "presigned {path}");
        }
        let mut hashed = settings();
        hashed.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let parts = signed(&Method::POST, "/", Some(BODY), hashed.clone());
        assert_eq!(verify(&parts, BODY), Ok(()));
        assert!(verify(&parts, b"other").is_err());
        let parts = signed(&Method::POST, "/", None, hashed);
        assert_eq!(verify(&parts, b"whatever"), Ok(()));
    }

    #[test]
    fn what_was_changed_is_refused() {
        let parts = || signed(&Method::POST, "/q?a=b", Some(BODY), settings());
        let refused = |change: &dyn Fn(&mut Parts)| {
            let mut parts = parts();
            change(&mut parts);
            verify(&parts, BODY).unwrap_err().code
        };
        let mismatch = Code::SignatureDoesNotMatch;
        assert_eq!(verify(&parts(), b"other").unwrap_err().code, mismatch);
        assert_eq!(refused(&|parts| parts.method = Method::GET), mismatch);
        assert_eq!(refused(&|parts| parts.uri = "/other?a=b".parse().unwrap()), mismatch);
        assert_eq!(refused(&|parts| parts.uri = "/q?a=c".parse().unwrap()), mismatch);
        for header in ["host", "x-amz-target", "x-odd"] {
            let change = |parts: &mut Parts| {
                parts.headers.insert(header, "AmazonSQS.PurgeQueue".parse().unwrap());
            };
            assert_eq!(refused(&change), mismatch, "{header}");
        }
        let another = |parts: &mut Parts| {
            parts.headers.append("x-amz-target", "AmazonSQS.PurgeQueue".parse().unwrap());
        };
        assert_eq!(refused(&another), mismatch);
        assert_eq!(verify_at(&parts(), BODY, "other", Utc::now()).unwrap_err().code, mismatch);
        for minutes in [-16, 16] {
            let then = Utc::now() + TimeDelta::minutes(minutes);
            assert_eq!(verify_at(&parts(), BODY, SECRET, then).unwrap_err().code, mismatch);
        }
        let then = Utc::now() + TimeDelta::minutes(59);
        let parts = signed(&Method::GET, "/", Some(b""), presigned());
        assert_eq!(verify_at(&parts, b"", SECRET, then), Ok(()));
        let then = Utc::now() + TimeDelta::minutes(61);
        assert_eq!(verify_at(&parts, b"", SECRET, then).unwrap_err().code, mismatch);
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let of = |header: &str| {
            let request = Request::builder().header("x-amz-date", "20260102T030405Z");
            let parts = request.header("authorization", header).body(()).unwrap().into_parts().0;
            Signature::read(&parts)
                .and_then(|signature| signature.verify(&parts, b"", "", Utc::now()))
        };
        let credential = "Credential=K/20260102/r/sqs/aws4_request";
        for odd in [
            "",
            "Basic dTpw",
            "AWS4-HMAC-SHA256",
            "AWS4-HMAC-SHA256 Credential=K/20260102/r/s3/aws4_request, SignedHeaders=host, Signature=0",
            "AWS4-HMAC-SHA256 Credential=K/20260103/r/sqs/aws4_request, SignedHeaders=host, Signature=0",
            &format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders=host"),
            &format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders=host;x-amz-date, Signature=zz"),
            &format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders=x-amz-date, Signature=00"),
            &format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=00"),
        ] {
            assert!(of(odd).is_err(), "{odd}");
        }
        let parts = Request::builder().body(()).unwrap().into_parts().0;
        assert_eq!(Signature::read(&parts).unwrap_err().code, Code::MissingAuthentication);
    }

    #[test]
    fn a_region_can_be_part_of_an_arn() {
        let region = |region: &str| {
            let header = format!(
                "AWS4-HMAC-SHA256 Credential=K/20260102/{region}/sqs/aws4_request, \
                 SignedHeaders=host, Signature=00"
            );
            let request = Request::builder().header("x-amz-date", "20260102T030405Z");
            let parts = request.header("authorization", header).body(()).unwrap().into_parts().0;
            Signature::read(&parts).map(|signature| signature.region)
        };
        assert_eq!(region("us-gov-east-1"), Ok(String::from("us-gov-east-1")));
        for odd in ["", "a:b", "a b", "a,b"] {
            assert_eq!(region(odd).unwrap_err().code, Code::IncompleteSignature, "{odd}");
        }
    }

    #[test]
    fn hexadecimal_digits_are_read() {
        assert_eq!(bytes_of_hex("00fF"), Some(vec![0, 255]));
        assert_eq!(bytes_of_hex("0"), None);
        assert_eq!(bytes_of_hex("0g"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_header_makes_it_panic(header in "(AWS4-HMAC-SHA256 )?(Credential=[/a-z0-9]{0,40}, ?)?(SignedHeaders=[a-z;]{0,20}, ?)?(Signature=[0-9a-z]{0,70})?", time in "[0-9TZ]{0,17}") {
            let request = Request::builder().header("authorization", header).header("x-amz-date", time);
            let parts = request.body(()).unwrap().into_parts().0;
            let read = Signature::read(&parts);
            proptest::prop_assert!(read.and_then(|read| read.verify(&parts, b"", "x", Utc::now())).is_err());
        }
    }
}
