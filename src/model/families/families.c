/* The list of families. */
#include "model/families/families.h"

#include <string.h>

const struct shore__family *const shore__families[] = {
    &shore__gpt2,    &shore__llama, &shore__mistral, &shore__ministral, &shore__ministral3,
    &shore__qwen2,   &shore__qwen3, &shore__gemma2,  &shore__gemma3,    &shore__smollm3,
    &shore__olmo2,   &shore__olmo3, &shore__phi3,    &shore__qwen3_moe, &shore__olmoe,
    &shore__gpt_oss, NULL};

const struct shore__family *shore__family_of(const char *model_type) {
    const struct shore__family *const *f = shore__families;
    while (*f && strcmp((*f)->model_type, model_type) != 0)
        f++;
    return *f;
}
