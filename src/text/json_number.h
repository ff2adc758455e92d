/* Checks a JSON number (RFC 8259, section 6), one byte at a time. */
#ifndef SHORE_TEXT_JSON_NUMBER_H
#define SHORE_TEXT_JSON_NUMBER_H

/* The part of a number in which the bytes so far end. */
enum shore__json_number {
    SHORE__JSON_MINUS,
    SHORE__JSON_ZERO,
    SHORE__JSON_WHOLE,
    SHORE__JSON_POINT,
    SHORE__JSON_FRACTION,
    SHORE__JSON_EXPONENT,
    SHORE__JSON_EXPONENT_SIGN,
    SHORE__JSON_EXPONENT_DIGITS,
};

enum shore__json_verdict { SHORE__JSON_GOES_ON, SHORE__JSON_IS_OVER, SHORE__JSON_NO_NUMBER };

/* Starts with the first byte, a minus or a digit. */
enum shore__json_number shore__json_number_begin(unsigned char c);
/* IS_OVER: the number ended before this byte. */
enum shore__json_verdict shore__json_number_step(enum shore__json_number *at, unsigned char c);

#endif
