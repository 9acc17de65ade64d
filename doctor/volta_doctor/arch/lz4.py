"""Unpacks the beginning of an LZ4 block, which is how nvcc up to 12.x packs device code."""

from volta_doctor.facts.elf import NotRead

_MORE = 15  # a length that goes on in the bytes that follow


def head(data: bytes, size: int) -> bytes:
    """Return the first `size` bytes of what `data` begins to hold. Raises NotRead."""
    unpacked = bytearray()
    at = 0

    def length(first: int) -> int:
        nonlocal at
        total, byte = first, 255
        while first == _MORE and byte == 255:
            byte = data[at]
            total += byte
            at += 1
        return total

    try:
        while len(unpacked) < size:
            token = data[at]
            at += 1
            literals = length(token >> 4)
            unpacked += data[at : at + literals]
            at += literals
            if len(unpacked) >= size:
                break
            distance = data[at] | data[at + 1] << 8
            at += 2
            for _ in range(min(length(token & _MORE) + 4, size)):
                unpacked.append(unpacked[-distance])
    except IndexError as error:
        raise NotRead("holds code whose packing makes no sense") from error
    return bytes(unpacked[:size])
