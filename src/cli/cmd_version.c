#include <dnnl.h>

#include "cli/cli.h"
#include "longshore/version.h"
#include "near/update.h"

void shore__cli_version(void) {
    const dnnl_version_t *dnnl = dnnl_version();
    printf("longshore %s\n", shore_version());
    puts("block I/O: io_uring, thread pool");
    puts("device signatures: libblkid");
    printf("matrix products: oneDNN %d.%d.%d\n", dnnl->major, dnnl->minor, dnnl->patch);
    printf("processor: %s, products of --precision bf16 run as %s\n", shore__processor_kind(),
           shore__products_for_this_processor() == SHORE__PRODUCTS_BF16 ? "bf16" : "fp32");
    printf("update:");
    for (const struct shore__near_version *v = shore__near_versions(); v->name; v++)
        printf(" %s%s", v->name, v->usable() ? "" : " (not on this processor)");
    putchar('\n');
}
