//! Signature Version 4, checked: in the header `Authorization`, or in a presigned address.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use hmac::Mac;
use hyper::http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
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

/// What a request says of its signature.
#[derive(Debug, PartialEq)]
pub(super) struct Signature {
    pub(super) access_key: String,
    pub(super) region: String,
    /// `date/region/service/aws4_request`.
    scope: String,
    signed_headers: Vec<String>,
    signature: String,
    time: String,
    /// Of a presigned address: for how many seconds it is good.
    expires: Option<i64>,
}

impl Signature {
    /// Reads what a request says.
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
        let signature = of("Signature")?.to_owned();
        Self::new(
            algorithm,
            of("Credential")?,
            of("SignedHeaders")?,
            signature,
            time.to_owned(),
            None,
        )
    }

    fn new(
        algorithm: &str,
        credential: &str,
        signed_headers: &str,
        signature: String,
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
        if time.get(..8) != Some(date) {
            return Err(incomplete("The credential is of another day than the request."));
        }
        Ok(Self {
            access_key: access_key.to_owned(),
            region: region.to_owned(),
            scope: format!("{date}/{region}/sqs/aws4_request"),
            signed_headers: signed_headers.split(';').map(str::to_owned).collect(),
            signature,
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
        let given = bytes_of_hex(&self.signature).unwrap_or_default();
        // In constant time.
        if hmac_of(&key).chain_update(to_sign).verify_slice(&given).is_err() {
            let message = "The request signature we calculated does not match the signature you \
                provided. Check your AWS Secret Access Key and signing method. Consult the service \
                documentation for details.";
            return Err(SqsError::new(Code::SignatureDoesNotMatch, message));
        }
        self.check_time(now)
    }

    fn check_time(&self, now: DateTime<Utc>) -> Result<(), SqsError> {
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
        // What says which operation is meant, where and when must be signed.
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
            headers.push_str(&format!("{name}:{}\n", values.join(",")));
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
    let encode = |text: &str| {
        let text = percent_decode_str(text).collect::<Vec<u8>>();
        percent_encoding::percent_encode(&text, VALUE).to_string()
    };
    let mut fields: Vec<(String, String)> = query
        .split('&')
        .filter(|field| !field.is_empty())
        .map(|field| field.split_once('=').unwrap_or((field, "")))
        .map(|(name, value)| (encode(name), encode(value)))
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    fields.sort();
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    fields.join("&")
}

/// The hash of the body, or the word that says that the body is not signed.
fn payload_hash(parts: &Parts, body: &[u8]) -> Result<String, SqsError> {
    let hash = hex(&Sha256::digest(body));
    match parts.headers.get("x-amz-content-sha256").map(|hash| hash.as_bytes()) {
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
