/* A published machine, for --emulate smart-infinity and `bench testbed smart-infinity`. */
#include "run/emulation/emulate.h"

/* Smart-Infinity (HPCA 2024, arXiv 2403.06664), the machine with an A5000: ten SmartSSDs behind one PCIe uplink. Rates
 * and model are divided by the scale; times are kept. The link, reading, writing, the kernel and the drives' memory are
 * the paper's figures. Forward and backward are its times where nothing waits for a drive. The kernel's rate is that of
 * the update on dense gradients. One streaming pass over decompressed gradients is assumed to keep that rate; the
 * paper's two passes reach 2.9 GB/s. Two constants are fitted to the paper's BASE: host-update's rate, and mixed. */
const char shore__smart_infinity[] =
    "{\n"
    "  \"name\": \"smart-infinity\",\n"
    "  \"scale\": 101,\n"
    "  \"link\": {\"shared\": \"8GB\"},\n"
    "  \"drives\": [{\"read\": \"2.8GB\", \"write\": \"1.65GB\", \"mixed\": \"2.7GB\", \"compute\": \"8.2GB\",\n"
    "              \"memory\": \"4GB\"}],\n"
    "  \"compute\": {\"forward\": 0.65, \"backward\": 4.2},\n"
    "  \"model\": {\"layers\": 24, \"width\": 384, \"inner\": 1344, \"heads\": 6},\n"
    "  \"host-update\": {\"rate\": \"3.8GB\", \"buffers\": 2}\n"
    "}\n";
