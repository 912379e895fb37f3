/* rmsprop.h - an optimizer of one's own, and all that one writes for it: Tieleman and Hinton 2012,
   as PyTorch writes it:  s = beta2 s + (1 - beta2) g^2,  p = p - lr g / (sqrt(s) + eps), with
   weight decay added to g. Compile the plugin with -DZERO_OWN_OPTIMIZERS='"tests/plugin/rmsprop.h"'
   -I. (the file is looked for from zero_plugin.cu's folder first, then in the include path), then
   cfg.optimizer = ZERO_OPTIMIZER_OWN. */
ZP_FN void rmsprop_at(const zp_update *u, float *p, float g, float *s, float *unused) {
    const float d = ZP_FMA(u->decay, *p, g);
    (void)unused;
    *s = ZP_FMA(u->beta2, *s, (1.0f - u->beta2) * (d * d));
    *p -= u->lr * (d / (sqrtf(*s) + u->eps));
}
#define ZERO_OWN(X) X(rmsprop, 1, rmsprop_at)
