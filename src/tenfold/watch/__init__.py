"""The page that shows runs, live and afterwards. It reads run folders only and imports nothing of training; what needs
a model is started as a process. Whatever is deleted here, training goes on as before."""
