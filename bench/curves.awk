# Draws loss curves as SVG: awk -v title=TEXT -f curves.awk NAME=FILE... , where FILE holds a loss per line. Each curve
# is an average over the last 2 % of the steps.
BEGIN {
    width = 900; height = 480; left = 64; right = 20; top = 44; bottom = 46; low = 1e30; high = -1e30
    split("#1b6ca8 #d1495b #3c887e #edae49 #5f4b8b", colour, " ")
    for (i = 1; i < ARGC; i++) {
        at = index(ARGV[i], "="); name[i] = substr(ARGV[i], 1, at - 1); file = substr(ARGV[i], at + 1); n = 0
        while ((getline line < file) > 0) if (line + 0 > 0) raw[i, ++n] = line + 0
        close(file); count[i] = n; if (n > steps) steps = n
        window = int(n / 50) + 1; sum = 0; shown[i] = 0
        for (s = 1; s <= n; s++) {
            sum += raw[i, s]; if (s > window) sum -= raw[i, s - window]
            if (s % (int(n / 400) + 1) && s < n) continue
            k = ++shown[i]; x[i, k] = s; y[i, k] = sum / (s < window ? s : window)
            if (s * 50 > n) { if (y[i, k] < low) low = y[i, k]; if (y[i, k] > high) high = y[i, k] }
        }
        last[i] = y[i, shown[i]]
    }
    if (steps < 2 || high <= low) exit 1
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\">\n", width, height
    printf "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"24\" font-size=\"15\">%s</text>\n", left, title
    for (i = 0; i <= 5; i++) {
        v = low + (high - low) * i / 5; py = place_y(v)
        printf "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>\n", left, py, width - right, left - 6, py + 4, v
        px = place_x(steps * i / 5)
        printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", px, height - bottom + 20, steps * i / 5
    }
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", (left + width - right) / 2, height - 8
    for (i = 1; i < ARGC; i++) {
        printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"", colour[i]
        for (k = 1; k <= shown[i]; k++) if (y[i, k] <= high) printf "%.1f,%.1f ", place_x(x[i, k]), place_y(y[i, k])
        printf "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s: %.4f</text>\n", width - right - 330, top + 18 * i, colour[i], name[i], last[i]
    }
    print "</svg>"
}
function place_x(s) { return left + (width - left - right) * s / steps }
function place_y(v) { return height - bottom - (height - top - bottom) * (v - low) / (high - low) }
