//! The crate crc-fast with a loop over chunks, callable from C.

use std::slice;

fn checksum(castagnoli: bool, data: &[u8]) -> u32 {
    if castagnoli {
        crc_fast::crc32_iscsi(data)
    } else {
        crc_fast::crc32_iso_hdlc(data)
    }
}

/// Returns the CRC of n bytes.
///
/// # Safety
/// data has n readable bytes.
#[no_mangle]
pub unsafe extern "C" fn crcfast_checksum(castagnoli: bool, data: *const u8, n: usize) -> u32 {
    checksum(castagnoli, slice::from_raw_parts(data, n))
}

/// Writes the big-endian CRC of each chunk of n bytes.
///
/// # Safety
/// data has n readable bytes, sums has room for four bytes per chunk.
#[no_mangle]
pub unsafe extern "C" fn crcfast_put(
    castagnoli: bool,
    sums: *mut u8,
    data: *const u8,
    n: usize,
    chunk: usize,
) {
    let data = slice::from_raw_parts(data, n);
    let sums = slice::from_raw_parts_mut(sums, n.div_ceil(chunk) * 4);
    for (part, sum) in data.chunks(chunk).zip(sums.chunks_exact_mut(4)) {
        sum.copy_from_slice(&checksum(castagnoli, part).to_be_bytes());
    }
}
