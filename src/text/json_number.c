#include "text/json_number.h"

#include <stdbool.h>

enum shore__json_number shore__json_number_begin(unsigned char c) {
    return c == '-' ? SHORE__JSON_MINUS : c == '0' ? SHORE__JSON_ZERO : SHORE__JSON_WHOLE;
}

static enum shore__json_verdict go_on(enum shore__json_number *at, enum shore__json_number next) {
    *at = next;
    return SHORE__JSON_GOES_ON;
}

enum shore__json_verdict shore__json_number_step(enum shore__json_number *at, unsigned char c) {
    bool digit = c >= '0' && c <= '9', e = (c | 32) == 'e', can_end = true;
    switch (*at) {
    case SHORE__JSON_MINUS:
        can_end = false;
        if (digit) return go_on(at, shore__json_number_begin(c));
        break;
    case SHORE__JSON_WHOLE:
        if (digit) return SHORE__JSON_GOES_ON;
        /* fallthrough */
    case SHORE__JSON_ZERO:
        if (c == '.') return go_on(at, SHORE__JSON_POINT);
        if (e) return go_on(at, SHORE__JSON_EXPONENT);
        break;
    case SHORE__JSON_POINT:
        can_end = false;
        if (digit) return go_on(at, SHORE__JSON_FRACTION);
        break;
    case SHORE__JSON_FRACTION:
        if (digit) return SHORE__JSON_GOES_ON;
        if (e) return go_on(at, SHORE__JSON_EXPONENT);
        break;
    case SHORE__JSON_EXPONENT:
        if (c == '+' || c == '-') return go_on(at, SHORE__JSON_EXPONENT_SIGN);
        /* fallthrough */
    case SHORE__JSON_EXPONENT_SIGN:
        can_end = false;
        if (digit) return go_on(at, SHORE__JSON_EXPONENT_DIGITS);
        break;
    default:
        if (digit) return SHORE__JSON_GOES_ON;
    }
    return can_end && !digit ? SHORE__JSON_IS_OVER : SHORE__JSON_NO_NUMBER;
}
