/* The list of families. */
#include "model/families/families.h"

#include <string.h>

const struct shore__family *const shore__families[] = {&shore__gpt2, &shore__llama, &shore__mistral, &shore__qwen2,
                                                       NULL};

const struct shore__family *shore__family_of(const char *model_type) {
    const struct shore__family *const *f = shore__families;
    while (*f && strcmp((*f)->model_type, model_type) != 0)
        f++;
    return *f;
}
