/* adagrad.h - an optimizer of one's own, and all that one writes for it: Duchi, Hazan and Singer
   2011, as PyTorch writes it:  s = s + g^2,  p = p - lr g / (sqrt(s) + eps), with weight decay
   added to g. Compile the plugin with -DZERO_OWN_OPTIMIZERS='"tests/adagrad.h"' -I. (the file is
   looked for from zero_plugin.cu's folder first, then in the include path), then cfg.optimizer =
   ZERO_OPTIMIZER_OWN. */
ZP_FN void adagrad_at(const zp_update *u, float *p, float g, float *s, float *unused) {
    const float d = ZP_FMA(u->decay, *p, g);
    (void)unused;
    *s = ZP_FMA(d, d, *s);
    *p -= u->lr * (d / (sqrtf(*s) + u->eps));
}
#define ZERO_OWN(X) X(adagrad, 1, adagrad_at)
